"""A counter a row: exact, for tables that are small enough."""

from __future__ import annotations

from ctypes import CDLL

import numpy as np
from numpy.typing import NDArray

from trainobs.access.sketch import BLOCK_ROWS, Blocks, Counts, Ids, rows_among
from trainobs.core.native import loops

Places = NDArray[np.intp]

BYTES_PER_ROW = 4
CARRY = 1 << 31
"""Taken off a counter of 32 bits before it overflows, and kept apart."""


class Dense:
    """Exact counts of one table, 4 bytes a row however high they grow.

    A row that comes near the end of 32 bits is moved on by `CARRY`. There are few such rows: one
    for each 2^31 lookups at most.
    """

    def __init__(self, row_count: int) -> None:
        self._low = np.zeros(row_count, np.uint32)
        self._carried: dict[int, int] = {}
        self._highest = 0  # no counter in `_low` is above it

    def add(self, ids: Ids, at: Places | None = None) -> int:
        """Count a lookup for each of `ids`, or of those at some places; how many are no rows."""
        count = len(ids) if at is None else len(at)
        self._make_room(count)
        if (library := loops()) is not None:
            return self._add_in_c(library, ids, at)
        inside = rows_among(ids if at is None else ids.take(at), len(self._low))
        np.add.at(self._low, inside, np.uint32(1))
        return count - len(inside)

    def _add_in_c(self, library: CDLL, ids: Ids, at: Places | None) -> int:
        ids = np.ascontiguousarray(ids)
        counters = self._low.ctypes.data, len(self._low)
        if at is None:
            places: tuple[int | None, int] = None, len(ids)
        else:
            at = np.ascontiguousarray(at, np.int64)
            places = at.ctypes.data, len(at)
        outside = int(library.trainobs_count(ids.ctypes.data, len(ids), *places, *counters))
        if outside < 0:
            raise IndexError(f"a place is not among those of {len(ids)} ids")
        return outside

    def put(self, ids: Ids, counts: Counts) -> None:
        """Add `counts` to the rows `ids`, no row twice."""
        high, low = counts // CARRY, counts % CARRY
        for at in np.flatnonzero(high):
            self._carry(int(ids[at]), int(high[at]) * CARRY)
        self._make_room(int(low.max(initial=0)))
        self._low[ids] += low.astype(np.uint32)

    def blocks(self) -> Blocks:
        """Rows that were looked up, and how often."""
        for first in range(0, len(self._low), BLOCK_ROWS):
            low = self._low[first : first + BLOCK_ROWS]
            counts = low.astype(np.uint64)
            self._add_carried(counts, first)
            rows = np.flatnonzero(counts)
            yield rows + first, counts[rows]

    def counters(self) -> NDArray[np.uint32] | NDArray[np.uint64]:
        """Count of every row, to be read at once: the counters themselves if they hold it."""
        return self.counts() if self._carried else self._low

    def counts(self) -> NDArray[np.uint64]:
        """Count of every row; a new array of 8 bytes a row."""
        counts = self._low.astype(np.uint64)
        self._add_carried(counts, 0)
        return counts

    def _add_carried(self, counts: Counts, first: int) -> None:
        for row, carried in self._carried.items():
            if first <= row < first + len(counts):
                counts[row - first] += np.uint64(carried)

    def _make_room(self, more: int) -> None:
        """Make sure that no counter overflows when up to 2^31 `more` are added to it."""
        limit = (1 << 32) - 1
        if self._highest + more > limit:
            for first in range(0, len(self._low), BLOCK_ROWS):
                low = self._low[first : first + BLOCK_ROWS]
                for at in np.flatnonzero(low >= CARRY):
                    self._carry(first + int(at), CARRY)
                    low[at] -= np.uint32(CARRY)
            self._highest = int(self._low.max(initial=0))
        self._highest += more

    def _carry(self, row: int, count: int) -> None:
        self._carried[row] = self._carried.get(row, 0) + count
