"""Counts of large tables in one pool of memory: exact until it is full, then bounded.

Each table's part is a Misra-Gries summary (J. Misra and D. Gries, Finding repeated elements, 1982)
in the form that can be merged (P. K. Agarwal et al., Mergeable summaries, PODS 2012). When a part
is to shrink to k rows, the (k+1)th highest count is subtracted from every row of it, and rows with
nothing left go. What was subtracted is added to the table's error, so the bound is known and not
estimated. Each unit of error took at least k + 1 lookups away: it is at most total / (k + 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainobs.access.sketch import BLOCK_ROWS, Blocks, Counts, Ids

BYTES_PER_ENTRY = 17  # key, count, and one byte of a mask while the pool shrinks


class CounterPool:
    """Counts of the rows of several tables, sorted by a key that is unique over all of them.

    Lookups wait in a buffer until it is full. Then it is sorted, what is known is added to, and
    what is new goes in between, in place. When there are more rows than fit, the tables with most
    of them give way: a table with few rows in use keeps all of them, and stays exact.

    Args:
        row_counts: rows of each table.
        entry_count: rows that the pool can hold; `pending_count` of them may be in use for a moment
            only.
        pending_count: lookups that wait.
    """

    def __init__(self, row_counts: Sequence[int], entry_count: int, pending_count: int) -> None:
        self._starts = np.cumsum([0, *row_counts], dtype=np.int64)
        self._keys = np.empty(entry_count, np.int64)
        self._counts = np.empty(entry_count, np.uint64)
        self._used = 0
        self._limit = entry_count - pending_count
        self._pending = np.empty(pending_count, np.int64)
        self._waiting = 0
        self.errors = [0] * len(row_counts)

    def __getstate__(self) -> dict[str, Any]:
        """With no lookups that wait: where it goes, its arrays may be read-only."""
        self.settle()
        return self.__dict__

    def add(self, table: int, ids: Ids) -> None:
        """Count a lookup for each of `ids`, all of which are rows of the table."""
        while len(ids):
            room = self._pending[self._waiting : self._waiting + len(ids)]
            np.add(ids[: len(room)], self._starts[table], out=room)
            self._waiting += len(room)
            ids = ids[len(room) :]
            if self._waiting == len(self._pending):
                self.settle()

    def put(self, table: int, ids: Ids, counts: Counts) -> None:
        """Add `counts` to the rows `ids`, ascending and no row twice."""
        size = len(self._pending)
        for first in range(0, len(ids), size):
            part = slice(first, first + size)
            self._fold(ids[part] + self._starts[table], counts[part])

    def blocks(self, table: int) -> Blocks:
        """Rows of a table that are in the pool, and their counts."""
        self.settle()
        begin, end = self._parts()[table : table + 2]
        for first in range(begin, end, BLOCK_ROWS):
            part = slice(first, min(first + BLOCK_ROWS, end))
            yield self._keys[part] - self._starts[table], self._counts[part].copy()

    def settle(self) -> None:
        """Count the lookups that wait."""
        if not self._waiting:
            return
        keys, counts = np.unique(self._pending[: self._waiting], return_counts=True)
        self._waiting = 0
        self._fold(keys, counts.astype(np.uint64))

    def _fold(self, keys: Ids, counts: Counts) -> None:
        """Add `counts` to sorted `keys`, of which there are no more than wait at once."""
        where = np.searchsorted(self._keys[: self._used], keys)
        known = where < self._used
        known[known] = self._keys[where[known]] == keys[known]
        self._counts[where[known]] += counts[known]
        self._insert(where[~known], keys[~known], counts[~known])
        if self._used > self._limit:
            self._shrink()

    def _insert(self, where: NDArray[np.intp], keys: Ids, counts: Counts) -> None:
        """Put new keys in front of the entries `where`; from the end on, so it needs no copy."""
        end, rest = self._used, len(keys)
        self._used += rest
        while rest:
            begin = max(0, end - len(self._pending))
            first = int(np.searchsorted(where[:rest], begin, "right")) if begin else 0
            new = slice(first, rest)
            is_old = np.ones(end - begin + rest - first, np.bool_)
            is_old[where[new] - begin + np.arange(rest - first)] = False
            for column, added in ((self._keys, keys), (self._counts, counts)):
                merged = np.empty(len(is_old), column.dtype)
                merged[is_old] = column[begin:end]
                merged[~is_old] = added[new]
                column[begin + first : end + rest] = merged
            end, rest = begin, first

    def _shrink(self) -> None:
        """Subtract from the tables with most rows until all fit."""
        parts = self._parts()
        sizes = np.diff(parts)
        quota = fair_quota(sizes, self._limit)
        for table in np.flatnonzero(sizes > quota):
            counts = self._counts[parts[table] : parts[table + 1]]
            level = _level(counts, quota)
            for first in range(0, len(counts), BLOCK_ROWS):
                block = counts[first : first + BLOCK_ROWS]
                block -= np.minimum(block, np.uint64(level))
            self.errors[table] += level
        self._drop_empty()

    def _drop_empty(self) -> None:
        kept = 0
        for first in range(0, self._used, BLOCK_ROWS):
            block = slice(first, min(first + BLOCK_ROWS, self._used))
            alive = self._counts[block] > 0
            end = kept + np.count_nonzero(alive)
            self._keys[kept:end] = self._keys[block][alive]
            self._counts[kept:end] = self._counts[block][alive]
            kept = end
        self._used = kept

    def _parts(self) -> list[int]:
        """Where the entries of each table begin, and where the last one's end."""
        return [int(at) for at in np.searchsorted(self._keys[: self._used], self._starts)]


def fair_quota(sizes: NDArray[np.intp], room: int) -> int:
    """The highest quota with which tables of `sizes` fit, where none takes more than it has."""
    for at, size in enumerate(ordered := np.sort(sizes).tolist()):
        if size * (len(ordered) - at) > room:
            return room // (len(ordered) - at)
        room -= size
    return max(ordered, default=0)


def _level(counts: Counts, quota: int) -> int:
    """The lowest count that at most `quota` of `counts` are above: the (quota + 1)th highest.

    By bisection, since `np.partition` would copy: it is at most their sum / (quota + 1).
    """
    low, high = 0, int(counts.sum()) // (quota + 1)
    while low < high:
        middle = (low + high) // 2
        if np.count_nonzero(counts > middle) <= quota:
            high = middle
        else:
            low = middle + 1
    return low
