"""Hot lookups that were sent with the others, served by the rank that has their rows.

TorchRec sends a lookup to the rank with its row in the table, and the hot rows of a `Partition` are
on that rank too. So the lookups of a mixed batch take TorchRec's own way, and there the lookup
module of the tables gets the cold ones, and that of the hot rows the others. What it gives is put
to what the tables gave, before TorchRec sends it back. Hot rows thus cost the links nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.fae.kjt.bitmap import HotBitmap
from trainobs.fae.kjt.jagged import by_lookup, lengths_of, permuted, with_values
from trainobs.fae.kjt.split import Bags, integers, part
from trainobs.fae.sharding.batch import SlotRows, WholeBatch
from trainobs.fae.sharding.order import whole_sequences
from trainobs.fae.sharding.torchrec_private import lookup_keys


class _Parted(NamedTuple):
    """The lookups that a rank received for one lookup module of its tables."""

    whole: WholeBatch  # as rows of tables
    cold: KeyedJaggedTensor
    hot: KeyedJaggedTensor  # as rows of the shards of hot rows


class Owner:
    """A lookup module of tables, and that of their hot rows, both of this rank.

    Args:
        tables: the lookup module of the tables.
        hot: that of the hot rows; each of its keys is one of `tables` too.
        slots: the row of each slot, among the hot rows of its table.
        is_replaced: whether FBGEMM takes the first row of a shard for a bad id of a feature.
        pools: whether lookups are pooled by bag.
    """

    def __init__(
        self,
        tables: nn.Module,
        hot: nn.Module,
        slots: SlotRows,
        is_replaced: Callable[[str], bool],
        pools: bool,
    ) -> None:
        self.tables = tables
        self._hot = hot
        self._slots = slots
        self._pools = pools
        self._keys = list(lookup_keys(tables))
        hot_keys = list(lookup_keys(hot))
        places = [key[:3] for key in self._keys]
        of_hot = [places.index(key[:3]) for key in hot_keys]  # the key with the same lookups
        self._pairs = tuple(sorted(of_hot))
        self._order = [self._pairs.index(place) for place in of_hot]
        self._back = [
            of_hot.index(place) if place in of_hot else None for place in range(len(places))
        ]
        self._first_rows = tuple(hot_keys[of_hot.index(place)].row for place in self._pairs)
        self._replaced = {key.feature for key in self._keys if is_replaced(key.feature)}

    def part(self, whole: KeyedJaggedTensor, bitmap: HotBitmap) -> _Parted:
        """Part hot lookups from the others; on a GPU this waits to know how many there are.

        Args:
            whole: lookups that all ranks sent here, as rows of the shards of this rank.
            bitmap: of the hot rows, by their rows in the tables.
        """
        features = [key.feature for key in self._keys]
        rows = with_values(whole, self._rows_of_tables(whole), features, is_weighted=False)
        found = bitmap.lookup(rows).slots
        lengths = integers(lengths_of(whole))
        bags = part(Bags(lengths, whole.values(), whole.weights_or_none()), found, self._pairs)
        hot_features = [features[pair] for pair in self._pairs]
        both = KeyedJaggedTensor(
            keys=[*features, *hot_features],
            values=bags.values,
            weights=bags.weights,
            lengths=bags.lengths.view(-1),
            stride=whole.stride(),
        )
        cold, hot = both.split([len(features), len(hot_features)])
        values = self._slots.lookup(hot, hot_features) - by_lookup(hot, self._first_rows)[0]
        hot = with_values(hot, values.to(whole.values().dtype))
        if self._order != list(range(len(self._order))):
            hot = permuted(hot, self._order)
        return _Parted(WholeBatch(rows, found >= 0), cold, hot)

    def serve(self, bitmap: HotBitmap, looked_up: Callable[[Tensor], None]) -> Iterator[Any]:
        """Have the next lookup of the tables serve hot lookups too; gives what ends it.

        Args:
            bitmap: of the hot rows.
            looked_up: is given what the hot rows gave.
        """
        parted: list[_Parted] = []

        def take_apart(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            parted.append(self.part(arguments[0], bitmap))
            return (parted[0].cold, *arguments[1:])

        def join(_: nn.Module, __: tuple[Any, ...], cold: Tensor) -> Tensor:
            found: Tensor = self._hot(parted[0].hot)
            looked_up(found)
            both = self._added(cold, found) if self._pools else self._merged(cold, found, parted[0])
            return both.to(cold.dtype)

        yield self.tables.register_forward_pre_hook(take_apart)
        yield self.tables.register_forward_hook(join)

    def _rows_of_tables(self, whole: KeyedJaggedTensor) -> Tensor:
        """int64[lookups], rows as the tables number them; -1 for bad ids that the tables refuse."""
        ids = whole.values().long()
        known = [(key.row, key.rows, int(key.feature in self._replaced)) for key in self._keys]
        first, rows, are_replaced = by_lookup(whole, *zip(*known, strict=True))
        is_row = (ids >= 0) & (ids < rows)
        # -1 stays: FBGEMM takes it for a row that was pruned
        is_first = ~is_row & (ids != -1) & (rows > 0) & are_replaced.bool()
        found = ids.masked_fill(is_first, 0) + first
        rows_of_tables: Tensor = found.masked_fill(~(is_row | is_first), -1)
        return rows_of_tables

    def _added(self, cold: Tensor, hot: Tensor) -> Tensor:
        """Sums of bags with those of their hot lookups."""
        if self._back == list(range(len(self._order))):
            return cold + hot
        widths = [self._keys[self._pairs[place]].columns for place in self._order]
        columns = torch.split(hot, widths, dim=1)
        spread = [
            cold.new_zeros(len(cold), key.columns) if place is None else columns[place]
            for place, key in zip(self._back, self._keys, strict=True)
        ]
        return cold + torch.cat(spread, dim=1)

    def _merged(self, cold: Tensor, hot: Tensor, parted: _Parted) -> Tensor:
        """Embeddings of sequences, in one dimension, with those of hot lookups in their places."""
        cold_counts, hot_counts = (kjt.length_per_key() for kjt in (parted.cold, parted.hot))
        counts = [0 if place is None else hot_counts[place] for place in self._back]
        widths = [key.columns for key in self._keys]
        hot_widths = [self._keys[self._pairs[place]].columns for place in self._order]
        cold_parts = torch.split(cold, _products(cold_counts, widths))
        hot_parts = torch.split(hot, _products(hot_counts, hot_widths))
        ordered = whole_sequences(parted.whole, cold_counts, counts, False)
        merged = []
        for at, (place, width) in enumerate(zip(self._back, widths, strict=True)):
            mine = cold_parts[at].view(-1, width)
            if place is not None:
                mine = ordered[at].merged(mine, hot_parts[place].view(-1, width))
            merged.append(mine.view(-1))
        return torch.cat(merged)


def _products(counts: Sequence[int], widths: Sequence[int]) -> list[int]:
    return [count * width for count, width in zip(counts, widths, strict=True)]


def owners(
    lookups: Sequence[nn.Module],
    hot_lookups: Sequence[nn.Module],
    slots: SlotRows,
    is_replaced: Callable[[str], bool],
    pools: bool,
) -> list[Owner]:
    """Lookup modules of tables with those of their hot rows, where this rank has any.

    Args:
        lookups: of the tables.
        hot_lookups: of the hot rows, which have the plans of their tables.
        slots: see `Owner`.
        is_replaced: see `Owner`.
        pools: see `Owner`.
    """
    found = []
    for hot in hot_lookups:
        tables = {key.table for key in lookup_keys(hot)}
        for lookup in lookups:
            if tables.intersection(key.table for key in lookup_keys(lookup)):
                found.append(Owner(lookup, hot, slots, is_replaced, pools))
    return found


@contextmanager
def serving(
    of_rank: Sequence[Owner], bitmap: HotBitmap, looked_up: Callable[[Tensor], None]
) -> Iterator[None]:
    """Have lookups of the tables serve hot lookups too.

    Args:
        of_rank: all owners of this rank.
        bitmap: see `Owner.serve`.
        looked_up: see `Owner.serve`.
    """
    hooks = [hook for owner in of_rank for hook in owner.serve(bitmap, looked_up)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
