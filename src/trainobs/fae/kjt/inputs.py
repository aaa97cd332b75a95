"""Lookups of inputs as arrays, and which inputs a calibration counts or holds out."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Lengths = NDArray[np.int64]


class InputUse(IntEnum):
    """What an input serves for: half of them are counted, a quarter each held out."""

    COUNTED = 0
    DECIDING = 2
    """Tells whether counting more would choose better rows."""
    REPORTING = 3
    """Seen by no decision, so that predictions from it are not optimistic."""


class Inputs(NamedTuple):
    """Lookups of some inputs, by feature.

    Attributes:
        size: inputs.
        ids: of each feature, the ids of all inputs, one input after the other; rows of a matrix
            where that is what there was.
        lengths: of each feature, lookups of each input; None where each has exactly one.
        begins: where runs of neighbours in the data begin, of inputs that were held out by runs.
    """

    size: int
    ids: tuple[Ids, ...] | Ids
    lengths: tuple[Lengths | None, ...]
    begins: NDArray[np.intp] | None = None

    @property
    def lookup_count(self) -> int:
        """Lookups of all features."""
        ids = self.ids
        return ids.size if isinstance(ids, np.ndarray) else sum(map(len, ids))

    def take(self, places: NDArray[np.intp]) -> Inputs:
        """The inputs at some places, in that order."""
        ids = tuple(own.take(self.lookups_at(i, places)) for i, own in enumerate(self.ids))
        lengths = (None if own is None else own.take(places) for own in self.lengths)
        return Inputs(len(places), ids, tuple(lengths))

    def lookups_at(self, feature: int, places: NDArray[np.intp]) -> NDArray[np.intp]:
        """Where the lookups of the inputs at some places are among those of a feature."""
        lengths = self.lengths[feature]
        if lengths is None:
            return places
        new = lengths.take(places)
        # From where a lookup is to where it was: as far as the begin of its input.
        moves = (np.cumsum(lengths) - lengths).take(places) - (np.cumsum(new) - new)
        return np.asarray(np.arange(new.sum()) + np.repeat(moves, new))

    def per_input(
        self, feature: int, flags: NDArray[np.bool_]
    ) -> NDArray[np.int64] | NDArray[np.bool_]:
        """Flagged lookups of each input, in one feature; as flags where each has one."""
        lengths = self.lengths[feature]
        if lengths is None:
            return flags
        sums = np.concatenate([[0], np.cumsum(flags, dtype=np.int64)])
        ends = np.cumsum(lengths)
        return np.asarray(sums[ends] - sums[ends - lengths])

    def lookups_of(self, feature: int) -> NDArray[np.int64]:
        """Lookups of each input in one feature; not to be written to."""
        lengths = self.lengths[feature]
        return np.broadcast_to(np.int64(1), self.size) if lengths is None else lengths


def joined(parts: Sequence[Inputs]) -> Inputs:
    """Several lots of inputs behind each other; at least one, all of the same features."""
    ids = tuple(
        np.concatenate(arrays) for arrays in zip(*(part.ids for part in parts), strict=True)
    )
    lengths = tuple(
        None
        if all(part.lengths[i] is None for part in parts)
        else np.concatenate([part.lookups_of(i) for part in parts])
        for i in range(len(ids))
    )
    return Inputs(sum(part.size for part in parts), ids, lengths)


def id_text(number: int) -> str:
    """An id outside of its table, in words: one of 2^63 and more was held as a negative number."""
    as_given = f" ({number % 2**64} where ids are uint64)" if number < -(2**31) else ""
    return f"{number}{as_given}"


def keys_of(numbers: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """A pseudo-random number for each input, from its number and a seed (SplitMix64).

    Inputs are told apart by their number in the data alone, so an input serves for the same in
    whatever order, batches and process it is read.
    """
    x = numbers.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + 1) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(x ^ (x >> np.uint64(31)))


def blocks_of(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The block of neighbours that each input belongs to, by its number in the data.

    There are 32 blocks from each power of two to the next, so that few data have many blocks too,
    until they have 1,024 inputs: many more than the sessions of a log.
    """
    bits = np.frexp(numbers.astype(np.float64))[1].astype(np.int64)
    shift = np.clip(bits - 6, 0, 10)
    return np.asarray(32 * shift + (numbers >> shift))


def parts_of(keys: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """The `InputUse` of each input; both 0 and 1 are counted."""
    return np.asarray(keys & np.uint64(3), dtype=np.uint8)
