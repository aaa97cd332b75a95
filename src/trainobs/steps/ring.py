"""The kernel's ring of step rows, as the collector reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import FIELDS, RING
from trainobs.core.cells import WORDS, Places, StepCells, Words

Taken = tuple[StepCells, list[Words]]
"""What the kernel counted in some steps, and the tables beside it: latency, what users count."""


class KernelRows(Protocol):
    """What the collector reads of the kernel side; both only grow."""

    rows: npt.NDArray[np.void]
    latency: Words

    def gone_since_ns(self) -> int | None:
        """CLOCK_MONOTONIC from which on nothing may have been counted; None: all is counted."""


class Ring:
    """The kernel's ring of step rows, and what it held when each slot was read last.

    Of the some 3,500 numbers of a row a busy step changes a hundred. Of these alone it is known
    what they were, since most of the cost is to bring the ring into the CPU's cache.
    """

    def __init__(self, kernel: KernelRows, more: Sequence[Words] = ()) -> None:
        self._rows = kernel.rows.view("<u8").reshape(RING, WORDS)
        self._tables = [kernel.latency, *more]
        self._places = np.empty(0, np.intp)
        self._counts = self._places
        self._seen_rows = np.empty((0, RING), np.uint64)
        self._seen_tables = [np.zeros_like(table) for table in self._tables]

    def take(self, slots: list[int]) -> Taken:
        """Growth of some slots since they were taken last; at least one."""
        return joined([self._take(run) for run in _runs(slots)])

    def late(self, slots: list[int]) -> list[int]:
        """Events, of kinds that were seen before, in each of some slots that should be at rest."""
        late: list[int] = []
        places = self._places[self._counts]
        for run in _runs(slots):
            grown = self._rows[run].T[places] - self._seen_rows[self._counts, run]
            late += grown.sum(axis=0).tolist()
        return late

    def _take(self, run: slice) -> Taken:
        used = np.bitwise_or.reduce(self._rows[run], axis=0)
        used[self._places] = 0
        if used.any():
            self._look_at(np.flatnonzero(used))
        values = self._rows[run].T[self._places]
        grown = values - self._seen_rows[:, run]
        self._seen_rows[:, run] = values
        changed = grown.any(axis=1)
        tables = zip(self._tables, self._seen_tables, strict=True)
        grown_tables = [_growth(table[run], seen[run]) for table, seen in tables]
        return StepCells(self._places[changed], grown[changed].T), grown_tables

    def _look_at(self, places: Places) -> None:
        """Numbers only grow: one that was 0 in every slot until now had grown in none."""
        both = np.union1d(self._places, places)
        seen = np.zeros((len(both), RING), np.uint64)
        seen[np.searchsorted(both, self._places)] = self._seen_rows
        self._places, self._seen_rows = both, seen
        self._counts = np.flatnonzero(both % len(FIELDS) == FIELDS.index("count"))


def _growth(table: Words, seen: Words) -> Words:
    """What some rows grew by since they were seen; `seen` is what they are now."""
    now = table.copy()
    grown: Words = now - seen
    seen[:] = now
    return grown


def joined(parts: Sequence[Taken]) -> Taken:
    """The steps of several, one after another; at least one."""
    cells, tables = zip(*parts, strict=True)
    return StepCells.join(cells), [np.concatenate(each) for each in zip(*tables, strict=True)]


def _runs(slots: list[int]) -> list[slice]:
    """The same slots in the same order, where they follow each other as one."""
    ends = [i for i in range(1, len(slots)) if slots[i] != slots[i - 1] + 1]
    bounds = zip([0, *ends], [*ends, len(slots)], strict=True)
    return [slice(slots[first], slots[last - 1] + 1) for first, last in bounds if first < last]
