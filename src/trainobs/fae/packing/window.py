"""A window of a loader's inputs, sorted into batches that are slices of a few tensors."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, repeat
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import get_worker_info
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.core.errors import FAEError
from trainobs.fae.kjt.find import KeyPath, KjtFinder
from trainobs.fae.kjt.leaves import put_together, take_apart
from trainobs.fae.kjt.split import (
    Bags,
    SlotMap,
    SplitMark,
    check_splittable,
    places_of,
)
from trainobs.fae.packing.pool import BagPool, InputPool

_DIGESTED_VALUES = 4096


@dataclass(frozen=True)
class KjtBlock:
    """KeyedJaggedTensors of several batches, one behind the other.

    Attributes:
        keys: of each; where lookups are parted, without the hot keys.
        lengths: of all bags.
        values: of all bags.
        weights: of the values, or None.
        key_lengths: values of each key, batches by keys.
    """

    keys: list[str]
    lengths: Tensor
    values: Tensor
    weights: Tensor | None
    key_lengths: NDArray[np.int64]

    def batch(
        self, index: int, first: int, end: int, keys: list[str] | None = None
    ) -> KeyedJaggedTensor:
        """One of them, which shares the memory of all.

        Args:
            index: of the batch.
            first: inputs before it.
            end: inputs up to its last one.
            keys: in place of its own.
        """
        per_key = self.key_lengths[index].tolist()
        start = int(self.key_lengths[:index].sum())
        values = slice(start, start + sum(per_key))
        keys = self.keys if keys is None else keys
        return KeyedJaggedTensor(
            keys=keys,
            values=self.values[values],
            weights=None if self.weights is None else self.weights[values],
            lengths=self.lengths[first * len(keys) : end * len(keys)],
            stride=end - first,
            length_per_key=per_key,
            offset_per_key=list(accumulate(per_key, initial=0)),
        )

    def pin_memory(self) -> KjtBlock:
        """The same in pinned memory."""
        weights = self.weights
        return replace(
            self,
            lengths=self.lengths.pin_memory(),
            values=self.values.pin_memory(),
            weights=None if weights is None else weights.pin_memory(),
        )


@dataclass(frozen=True)
class PackedWindow:
    """Batches of a window: first those of all-hot inputs, each full, then the others.

    Attributes:
        holed: a batch with holes.
        leaves: for each hole what all batches are slices of, or the constant they share.
        split_leaf: index of the leaf with the lookups.
        mark: of the lookups.
        sizes: inputs of each batch.
        hot_count: batches of all-hot inputs.
        batch_size: inputs of a full batch.
        is_whole: whether the leaf has lookups whole, because they are sequences or some ids are
            outside of their table.
        parted: lookups of the first `hot_count` batches, apart, where the leaf has them
            whole; else None.
        digest: of what was read; another window has another one, very likely.
        worker: that made it.
        source_state: of the data set behind the window, if it tells.
    """

    holed: Any
    leaves: list[Any]
    split_leaf: int
    mark: SplitMark
    sizes: list[int]
    hot_count: int
    batch_size: int
    is_whole: bool = False
    parted: KjtBlock | None = None
    digest: int = 0
    worker: int = 0
    source_state: dict[str, Any] | None = None

    @property
    def input_count(self) -> int:
        """Inputs of all batches."""
        return sum(self.sizes)

    def batch(self, index: int, *, pure: bool) -> Any:
        """One batch, of the loader's form; tensors are slices of the window's.

        Args:
            index: of the batch.
            pure: whether every rank trains on a batch of all-hot inputs in this step.
        """
        first = sum(self.sizes[:index])
        end = first + self.sizes[index]
        mark = self.mark._replace(pure=pure)
        leaves: list[Any] = []
        for i, leaf in enumerate(self.leaves):
            if isinstance(leaf, KjtBlock):
                if i == self.split_leaf and pure and self.parted is not None:
                    leaf = self.parted
                is_parted = i == self.split_leaf and (pure or not self.is_whole)
                leaf = leaf.batch(index, first, end, mark.keys() if is_parted else None)
            elif isinstance(leaf, (Tensor, np.ndarray)):
                leaf = leaf[first:end]
            leaves.append(leaf)
        return put_together(self.holed, leaves)

    def redivided(self, first: int, count: int) -> PackedWindow:
        """The inputs of the batches from `first` on, in another number of about equal batches."""
        pool = InputPool.from_batches(
            [self.batch(i, pure=False) for i in range(first, len(self.sizes))]
        )
        smaller, larger = divmod(pool.input_count, count)
        sizes = [smaller + (i < larger) for i in range(count)]
        leaves = lay_out(pool, torch.arange(pool.input_count), sizes, [])
        window = replace(self, leaves=leaves, sizes=sizes, hot_count=0, parted=None)
        is_pinned = self.leaves[self.split_leaf].lengths.is_pinned()
        return window.pin_memory() if is_pinned else window

    def pin_memory(self) -> PackedWindow:
        """The same in pinned memory; loaders with `pin_memory=True` call it."""
        pinned = [
            leaf.pin_memory() if isinstance(leaf, (Tensor, KjtBlock)) else leaf
            for leaf in self.leaves
        ]
        parted = None if self.parted is None else self.parted.pin_memory()
        return replace(self, leaves=pinned, parted=parted)


class Packer:
    """Sorts the inputs of a window into batches. Pickles.

    Args:
        slots: of the hot rows.
        finder: of the lookups in a batch.
        batch_size: inputs of a packed batch; None for that of the first batch seen.
        drop_last: leave out the inputs of a window that do not fill a batch.
    """

    def __init__(
        self, slots: SlotMap, finder: KjtFinder, batch_size: int | None, drop_last: bool
    ) -> None:
        self._slots = slots
        self._finder = finder
        self.batch_size = batch_size
        self._drop_last = drop_last

    def pack(self, batches: Sequence[Any]) -> PackedWindow:
        """Sort the inputs of some batches. Of either kind they stay in order.

        Raises:
            FAEError: a batch cannot be packed.
            SettingError: it is not clear which lookups are meant.
        """
        kjts = [self._finder(batch) for batch in batches]
        for kjt in kjts:
            _check(kjt)
        mark = self._slots.mark(kjts[0])
        pairs = mark.pairs
        self.learn_batch_size(batches)
        size = self.batch_size or 1
        place = _place_of(kjts[0], batches[0])
        pool = InputPool.from_batches(batches, {place: self._slots})
        split_leaf = [at for at, _ in pool.leaves].index(place)
        bags = pool.leaves[split_leaf][1]
        is_hot = bags.all_hot(pairs)
        order, hot_count = arrange(is_hot, size)
        sizes = [min(size, len(order) - first) for first in range(0, len(order), size)]
        if self._drop_last and sizes and sizes[-1] < size:
            sizes.pop()
        # what a bad id stands for, maybe a hot row, the sharder knows by the plan
        is_whole = self._slots.keeps_order or bags.has_bad_ids
        hot = torch.split(order[: hot_count * size], size) if hot_count else ()
        return PackedWindow(
            holed=pool.holed,
            leaves=lay_out(pool, order, sizes, None if is_whole else pairs),
            split_leaf=split_leaf,
            mark=mark,
            sizes=sizes,
            hot_count=hot_count,
            batch_size=size,
            is_whole=is_whole,
            parted=_block(bags, hot, pairs) if is_whole else None,
            digest=_digest(is_hot, kjts[0].values()),
        )

    def learn_batch_size(self, batches: Sequence[Any]) -> None:
        """Take the size of the first batch with inputs where none was given."""
        if self.batch_size is None:
            sizes = (self._finder(batch).stride() for batch in batches)
            self.batch_size = next((size for size in sizes if size), None)


def arrange(is_hot: Tensor, batch_size: int) -> tuple[Tensor, int]:
    """Order of inputs in which full batches of all-hot ones come first.

    All-hot inputs that fill no batch go with the others, in their old place among them.

    Args:
        is_hot: bool, for each input.
        batch_size: inputs of a batch.

    Returns:
        The inputs in their new order, and the number of all-hot batches.
    """
    hot = places_of(is_hot)
    hot_count = len(hot) // batch_size
    chosen = hot[: hot_count * batch_size]
    others = torch.ones_like(is_hot)
    others[chosen] = False
    return torch.cat([chosen, places_of(others)]), hot_count


def lay_out(
    pool: InputPool, order: Tensor, sizes: list[int], pairs: Sequence[int] | None
) -> list[Any]:
    """The pool's leaves in the order of the batches, lookups parted where slots are known.

    Args:
        pool: of inputs.
        order: of the inputs.
        sizes: of the batches; inputs beyond these are left out.
        pairs: for each hot key of the parted lookups, the index of the key that it is paired with;
            None to leave all lookups whole.
    """
    order = order[: sum(sizes)]
    leaves: list[Any] = []
    for _, leaf in pool.leaves:
        if isinstance(leaf, BagPool):
            leaves.append(_block(leaf, torch.split(order, sizes), pairs))
        elif isinstance(leaf, Tensor):
            leaves.append(_rows(leaf, order))
        elif isinstance(leaf, np.ndarray):
            leaves.append(leaf[order.numpy()])
        else:
            leaves.append(leaf)
    return leaves


def _block(pool: BagPool, batches: Sequence[Tensor], pairs: Sequence[int] | None) -> KjtBlock:
    """Batch by batch: what a batch needs stays in the processor's cache."""
    pairs = None if pool.slots is None else pairs
    key_count, counts = len(pool.keys) + len(pairs or ()), pool.counts(batches)
    lengths = _empty(pool.lengths, (key_count * sum(map(len, batches)),))
    values = _empty(pool.values, (sum(counts),))
    weights = None if pool.weights is None else _empty(pool.weights, values.shape)
    rooms = zip(
        torch.split(lengths, [key_count * len(inputs) for inputs in batches]),
        torch.split(values, counts),
        repeat(None) if weights is None else torch.split(weights, counts),
        strict=False,
    )
    key_lengths = [
        pool.put(inputs, pairs, Bags(*room)) for inputs, room in zip(batches, rooms, strict=True)
    ]
    return KjtBlock(pool.keys, lengths, values, weights, np.array(key_lengths, dtype=np.int64))


def _check(kjt: KeyedJaggedTensor) -> None:
    """Refuse what cannot be packed: a copy would have no gradient to give back."""
    check_splittable(kjt)
    weights = kjt.weights_or_none()
    if weights is not None and weights.requires_grad:
        raise FAEError(
            "cannot pack a batch",
            "weights of lookups that require a gradient",
            "give weights.detach(); where weights are learned, train them in the model",
        )


def _rows(leaf: Tensor, order: Tensor) -> Tensor:
    if leaf.requires_grad or leaf.layout != torch.strided:
        return leaf.index_select(0, order)
    rows = _empty(leaf, (len(order), *leaf.shape[1:]))
    return torch.index_select(leaf, 0, order, out=rows)


def _empty(like: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor without content; in a loader's worker in memory that it shares with the training.

    There it would be copied else. As `torch.utils.data.default_collate` does.
    """
    if get_worker_info() is None:
        return like.new_empty(shape)
    storage = like._typed_storage()._new_shared(  # type: ignore[no-untyped-call]
        math.prod(shape), device=like.device
    )
    return like.new(storage).resize_(shape)


def _place_of(kjt: KeyedJaggedTensor, batch: Any) -> KeyPath:
    return next(place for place, leaf in take_apart(batch)[1] if leaf is kjt)


def _digest(is_hot: Tensor, values: Tensor) -> int:
    digest = zlib.crc32(is_hot.numpy().tobytes())
    return zlib.crc32(values[:_DIGESTED_VALUES].numpy().tobytes(), digest)
