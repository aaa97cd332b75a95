"""The kernel's ring of step rows, as the collector reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import FIELDS, RING
from trainobs.core.cells import WORDS, StepCells, Words

Taken = tuple[StepCells, list[Words]]
"""What the kernel counted in some steps, and the tables beside it: latency, what users count."""


class KernelRows(Protocol):
    """What the collector reads of the kernel side; all of it only grows."""

    rows: npt.NDArray[np.void]
    touched: npt.NDArray[np.uint8]
    latency: Words

    def gone_since_ns(self) -> int | None:
        """CLOCK_MONOTONIC from which on nothing may have been counted; None: all is counted."""


class Ring:
    """The kernel's ring of step rows, and what it held when each slot was read last.

    Of the 1,040 cells of a row a busy step changes some 26. Only those are read that the kernel has
    touched in any step, since most of the cost is to bring the ring into the CPU's cache.
    """

    def __init__(self, kernel: KernelRows, more: Sequence[Words] = ()) -> None:
        self._rows = kernel.rows.view("<u8").reshape(RING, WORDS)
        self._touched = kernel.touched.reshape(-1)
        self._tables = [kernel.latency, *more]
        self._looked_at = b""
        self._places = np.empty(0, np.intp)
        self._counts = self._places
        self._seen_rows = np.empty((0, RING), np.uint64)
        self._seen_tables = [np.zeros_like(table) for table in self._tables]

    def take(self, slots: list[int]) -> Taken:
        """Growth of some slots since they were taken last; at least one."""
        touched = self._touched.tobytes()
        if touched != self._looked_at:
            self._look_at(touched)
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
        values = self._rows[run].T[self._places]
        grown = values - self._seen_rows[:, run]
        self._seen_rows[:, run] = values
        changed = grown.any(axis=1)
        tables = zip(self._tables, self._seen_tables, strict=True)
        grown_tables = [_growth(table[run], seen[run]) for table, seen in tables]
        return StepCells(self._places[changed], grown[changed].T), grown_tables

    def _look_at(self, touched: bytes) -> None:
        """Read more cells from now on: nothing was in them, in any slot, until now."""
        cells = np.flatnonzero(np.frombuffer(touched, np.uint8))
        places = (cells[:, None] * len(FIELDS) + np.arange(len(FIELDS))).ravel()
        seen = np.zeros((len(places), RING), np.uint64)
        seen[np.searchsorted(places, self._places)] = self._seen_rows
        self._places, self._seen_rows, self._looked_at = places, seen, touched
        self._counts = np.flatnonzero(places % len(FIELDS) == FIELDS.index("count"))


def _growth(table: Words, seen: Words) -> Words:
    """What some rows grew by since they were seen; `seen` is what they are now."""
    if table.tobytes() == seen.tobytes():
        return np.zeros_like(table)
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
