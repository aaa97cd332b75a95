"""Where the lookups of sequences are, after hot ones were taken apart from cold ones."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.core.errors import FAEError
from trainobs.fae.kjt.split import cold_count, read_mark
from trainobs.fae.shard.batch import SplitBatch, WholeBatch
from trainobs.fae.shard.translate import Translation


class FeatureSequence(NamedTuple):
    """The lookups of one feature, in the order of the batch.

    Attributes:
        lengths: of each input.
        hot: which of all hot embeddings are of this output.
        order: int64[lookups], place of each among the feature's cold lookups with its hot ones
            behind them; None where it has one kind only.
        ids: rows, one a lookup; None where nobody asks for them.
    """

    lengths: Tensor
    hot: slice
    order: Tensor | None
    ids: Tensor | None

    def merged(self, cold: Tensor, hot: Tensor) -> Tensor:
        """The embeddings in order; both kinds stay in the graph, since all ranks train both.

        Args:
            cold: [cold lookups, columns], of this output.
            hot: [lookups, columns], of all outputs.
        """
        both = torch.cat([cold, hot[self.hot]])
        return both if self.order is None else both.index_select(0, self.order)


def check_order(batch: KeyedJaggedTensor) -> None:
    """Whether the order of lookups is known.

    Raises:
        FAEError: it is not: somebody took a mixed batch apart.
    """
    mark = read_mark(batch)
    if mark is not None and cold_count(batch, mark):
        raise FAEError(
            "cannot look up the sequences of a batch",
            "cold lookups in a batch that came apart, and so without the order of its lookups",
            "pack with the profile that calibrate() made of these tables, or give the batch whole",
        )


def sequences(
    batch: SplitBatch, features: Iterable[str], ids: Translation | None
) -> list[FeatureSequence]:
    """The sequences of a batch, for each output. Asks no device.

    Args:
        batch: whose order is known.
        features: of the outputs.
        ids: rows of slots, if they are asked for.
    """
    cold = batch.cold.length_per_key()
    hot = dict(zip(batch.twins, batch.hot.length_per_key(), strict=True))
    position = {key: at for at, key in enumerate(batch.cold.keys())}
    if batch.whole is not None:
        counts = [hot.get(key, 0) for key in range(len(cold))]
        apart = _of_whole(batch.whole, cold, counts, ids is not None)
    else:
        apart = _of_hot(batch, ids)
    found = []
    end = 0
    for feature in features:
        key = position[feature]
        start, end = end, end + hot.get(key, 0)
        lengths, order, rows = apart[key]
        one_kind = start == end or not cold[key]
        found.append(FeatureSequence(lengths, slice(start, end), None if one_kind else order, rows))
    return found


class _Key(NamedTuple):
    """What is known of a key's lookups, as in `FeatureSequence`."""

    lengths: Tensor
    order: Tensor | None
    ids: Tensor | None


def _of_whole(
    whole: WholeBatch, cold: list[int], hot: list[int], with_ids: bool
) -> dict[int, _Key]:
    """Keys of a batch that came whole, by their position."""
    kjt, is_hot = whole
    counts = kjt.length_per_key()
    hot_before = torch.cumsum(is_hot, 0) - is_hot.long()
    cold_before = torch.arange(len(is_hot), device=is_hot.device) - hot_before
    first_hot = list(accumulate(hot, initial=0))
    first_cold = list(accumulate(cold, initial=0))
    shifts = torch.tensor(
        [  # of a feature: its hot lookups begin behind its cold ones, and these at 0
            [cold[key] - first_hot[key] for key in range(len(counts))],
            [-first_cold[key] for key in range(len(counts))],
        ]
    )
    hot_shift, cold_shift = torch.repeat_interleave(
        shifts.to(is_hot.device),
        torch.tensor(counts, device=is_hot.device),
        dim=1,
        output_size=len(is_hot),
    )
    order = torch.where(is_hot, hot_before + hot_shift, cold_before + cold_shift)
    lengths = kjt.lengths().view(len(counts), -1)
    orders, rows = torch.split(order, counts), torch.split(kjt.values(), counts)
    return {
        key: _Key(lengths[key], orders[key], rows[key] if with_ids else None)
        for key in range(len(counts))
    }


def _of_hot(batch: SplitBatch, ids: Translation | None) -> dict[int, _Key]:
    """Keys with a twin of a batch without cold lookups, by their position."""
    counts = batch.hot.length_per_key()
    lengths = batch.hot.lengths().view(len(counts), -1)
    rows: tuple[Tensor, ...] | None = None
    if ids is not None:
        of_slots = ids.of(batch.hot, batch.hot_features).to(batch.cold.values().dtype)
        rows = torch.split(of_slots, counts)
    return {
        key: _Key(lengths[at], None, None if rows is None else rows[at])
        for at, key in enumerate(batch.twins)
    }
