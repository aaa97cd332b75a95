"""A batch with its hot lookups apart, on its way through a sharded collection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchrec.distributed.embedding_types import KJTList
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor
from torchrec.streamable import Multistreamable

from trainobs.fae.kjt.jagged import by_lookup, constant, lengths_of
from trainobs.fae.profile.profile import FAEProfile

Process = Callable[[KJTList], KJTList]
"""Gives lookups weights, as a feature processor does."""


class WholeBatch(NamedTuple):
    """A batch as it came, bad ids too."""

    kjt: KeyedJaggedTensor
    is_hot: Tensor  # bool[values]


class SplitBatch(NamedTuple):
    """A batch with its hot lookups apart."""

    number: int  # how many batches came before
    cold: KeyedJaggedTensor  # lookups of cold rows, under the keys of the batch
    hot: KeyedJaggedTensor  # lookups of hot rows, as slots
    pairs: tuple[int, ...]  # for each key of `hot`, the index of the key that it is paired with
    is_pure: bool  # whether no rank has a cold lookup, so that all leave the tables alone
    whole: WholeBatch | None = None  # before it was split here; None if the loader split it
    refused: int = 0  # what `BoundsCheck.refused` found

    @property
    def hot_features(self) -> tuple[str, ...]:
        """Feature of each key of `hot`."""
        keys = self.cold.keys()
        return tuple(keys[pair] for pair in self.pairs)


class SlotRows:
    """The row of each slot, in some numbering of rows.

    Args:
        rows: int64[slots] for each table.
        profile: whose slots they are.
        device: where batches are.
    """

    def __init__(
        self, rows: Mapping[str, Tensor], profile: FAEProfile, device: torch.device
    ) -> None:
        self._starts: dict[str, int] = {}
        start = 0
        for table, of_table in rows.items():
            self._starts.update(dict.fromkeys(profile.table(table).features, start))
            start += len(of_table)
        self._rows = torch.cat([torch.zeros(0, dtype=torch.int64), *rows.values()]).to(device)

    @classmethod
    def from_profile(cls, profile: FAEProfile, device: torch.device) -> SlotRows:
        """Rows as the tables number them."""
        ids = {table.name: torch.from_numpy(table.hot_ids) for table in profile.tables}
        return cls(ids, profile, device)

    def lookup(self, hot: KeyedJaggedTensor, features: Sequence[str]) -> Tensor:
        """int64[lookups]: the row of each slot of `hot`, whose keys stand for these features."""
        (shifts,) = by_lookup(hot, (self._starts.get(feature, 0) for feature in features))
        return self._rows.index_select(0, (hot.values() + shifts).long())


class FeatureSequence(NamedTuple):
    """The lookups of one feature, in the order of the batch.

    `order` is the place of each lookup among the feature's cold lookups with its hot ones behind
    them; None where the feature has one kind only.
    """

    lengths: Tensor  # of each input
    order: Tensor | None  # int64[lookups]
    ids: Tensor | None  # rows, one a lookup; None where nobody needs them

    def merged(self, cold: Tensor, hot: Tensor) -> Tensor:
        """The embeddings in order; both kinds stay in the graph, since all ranks train both.

        Args:
            cold: [cold lookups, columns], of this output.
            hot: [hot lookups, columns], of this output.
        """
        both = torch.cat([cold, hot])
        return both if self.order is None else both.index_select(0, self.order)

    def jagged(self, embeddings: Tensor) -> JaggedTensor:
        """These embeddings, as the stock collection gives them."""
        return JaggedTensor(values=embeddings, lengths=self.lengths, weights=self.ids)

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the memory until the stream is done with it."""
        for tensor in (self.lengths, self.order, self.ids):
            if tensor is not None:
                tensor.record_stream(stream)


class FAEContext(Multistreamable):  # type: ignore[misc]  # TorchRec has no types
    """What the stages of one forward pass share."""

    def __init__(self, stock: Any) -> None:
        self.stock = stock  # the same of the stock collection
        self.batch_number = 0  # how many batches came before
        self.input_count = 0
        self.generation = 0  # of the overlay's hot rows
        self.is_pure = False  # whether the tables are left alone
        self.is_whole = False  # whether hot lookups are sent with the others
        self.hot: list[Any] = []  # hot lookups of each kernel
        self.lengths: Tensor | None = None  # [inputs, columns] to divide by, of FBGEMM's means
        self.process: Process | None = None  # of a feature processor over the collection
        self.sequences: Sequence[FeatureSequence] = ()  # of each output, unless by the tables

    @property
    def sharding_contexts(self) -> list[Any]:
        """What a pipeline that sends the lookups of many collections at once writes to."""
        contexts: list[Any] = self.stock.sharding_contexts
        return contexts

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the memory until the stream is done with it."""
        lengths = () if self.lengths is None else (self.lengths,)
        for part in (self.stock, *self.hot, *lengths, *self.sequences):
            part.record_stream(stream)


def join(
    cold: KeyedJaggedTensor, hot: KeyedJaggedTensor, pairs: Sequence[int], slots: SlotRows
) -> KeyedJaggedTensor:
    """Join what `split` took apart; the order of lookups in a bag may be another.

    Args:
        cold: lookups of cold rows.
        hot: lookups of hot rows, as slots.
        pairs: for each key of `hot`, the index of the key of `cold` that it is paired with.
        slots: the row of each slot.
    """
    keys, stride = cold.keys(), cold.stride()
    cold_lengths = lengths_of(cold)
    hot_lengths = lengths_of(hot).to(cold_lengths.dtype)
    index = constant(tuple(pairs), cold_lengths.device)
    rows = slots.lookup(hot, [keys[pair] for pair in pairs]).to(cold.values().dtype)
    bags = torch.cat(
        [
            _bags(cold_lengths, torch.arange(len(keys), device=index.device), cold),
            _bags(hot_lengths, index, hot),
        ]
    )
    order = bags.argsort(stable=True)
    counts = list(cold.length_per_key())
    for pair, count in zip(pairs, hot.length_per_key(), strict=True):
        counts[pair] += count
    weights = cold.weights_or_none()
    if weights is not None:
        weights = torch.cat([weights, hot.weights()]).index_select(0, order)
    return KeyedJaggedTensor(
        keys=keys,
        values=torch.cat([cold.values(), rows]).index_select(0, order),
        weights=weights,
        lengths=cold_lengths.index_add(0, index, hot_lengths).view(-1),
        stride=stride,
        length_per_key=counts,  # or TorchRec asks the device
    )


def _bags(lengths: Tensor, keys: Tensor, kjt: KeyedJaggedTensor) -> Tensor:
    """Number of the bag of each lookup, counted over the keys of the whole batch."""
    stride = lengths.shape[1]
    numbers = keys[:, None] * stride + torch.arange(stride, device=keys.device)
    return torch.repeat_interleave(
        numbers.view(-1), lengths.reshape(-1), output_size=kjt.values().numel()
    )
