"""The kernel's ring of step rows, as the collector reads it."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import FIELDS, RING
from trainobs.core.cells import StepCells, Words
from trainobs.core.native import loops

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

    Of the cells of a row a busy step changes some 26. Only those are read that the kernel has
    touched in any step, since most of the cost is to bring the ring into the CPU's cache.
    """

    def __init__(self, kernel: KernelRows, more: Sequence[Words] = ()) -> None:
        self._touched = kernel.touched.reshape(-1)
        self._looked_at = b""
        self._places = np.empty(0, np.intp)
        self._rows = _Slots(kernel.rows.reshape(RING, -1).view(np.uint64), len(FIELDS))
        self._tables = [_Slots(table, table.shape[1]) for table in (kernel.latency, *more)]
        for table in self._tables:
            table.look_at(np.zeros(1, np.intp))

    def take(self, serials: Sequence[int], at_rest: Sequence[int] = ()) -> tuple[Taken, list[int]]:
        """Growth of the slots of some steps since they were taken last; at least one.

        Args:
            serials: of the steps.
            at_rest: serials of steps that were taken, whose slots should not grow any more.

        Returns:
            What was counted in the steps, and of each of those at rest how many events came late.
        """
        touched = self._touched.tobytes()
        if touched != self._looked_at:
            self._look_at(touched)
        slots = np.array([*serials, *at_rest]) % RING
        taken = slots[: len(serials)]
        grown, late = self._rows.take(slots, len(taken))
        tables = [table.take(taken, len(taken))[0] for table in self._tables]
        return (StepCells(self._places, grown), tables), late.tolist()

    def _look_at(self, touched: bytes) -> None:
        """Read more cells from now on: nothing was in them, in any slot, until now."""
        cells = np.flatnonzero(np.frombuffer(touched, np.uint8))
        self._rows.look_at(cells)
        self._places = (cells[:, None] * len(FIELDS) + np.arange(len(FIELDS))).ravel()
        self._looked_at = touched


class _Slots:
    """Slots of a table that only grows, and what some of their cells held when read last.

    Args:
        table: shape (RING, numbers in a slot).
        words: numbers in a cell, of which the first is a count.
    """

    def __init__(self, table: Words, words: int) -> None:
        self._table = table
        self._words = words
        # A cell as one thing to copy: field by field it takes ten times as long.
        self._cells = table.view(np.dtype((np.void, words * table.itemsize)))
        self._used = np.empty(0, np.intp)
        self._seen = np.empty((RING, 0), np.uint64)

    def look_at(self, cells: npt.NDArray[np.intp]) -> None:
        """Read these cells, ascending: those that are read already, and more that are empty."""
        seen = np.zeros((RING, len(cells), self._words), np.uint64)
        before = np.searchsorted(cells, self._used)
        seen[:, before] = self._seen.reshape(RING, len(before), self._words)
        self._used, self._seen = cells, seen.reshape(RING, -1)

    def take(self, slots: npt.NDArray[np.intp], count: int) -> tuple[Words, Words]:
        """Growth of the first `count` slots, and of each other one how much its counts grew."""
        if (library := loops()) is not None:
            return self._take_in_c(library, slots, count)
        values = self._cells[slots[:, None], self._used].view(np.uint64)
        grown = values - self._seen[slots]
        self._seen[slots[:count]] = values[:count]
        return grown[:count], grown[count:, :: self._words].sum(axis=1)

    def _take_in_c(
        self, library: CDLL, slots: npt.NDArray[np.intp], count: int
    ) -> tuple[Words, Words]:
        grown = np.empty((count, self._seen.shape[1]), np.uint64)
        late = np.empty(len(slots) - count, np.uint64)
        table = self._table.ctypes.data, *self._cells.shape, self._words
        used = self._used.ctypes.data, len(self._used)
        which = slots.ctypes.data, count, len(late)
        filled = (array.ctypes.data for array in (self._seen, grown, late))
        if library.trainobs_grown(*table, *used, *which, *filled) < 0:
            raise IndexError(f"a cell or slot is not among those of {self._cells.shape}")
        return grown, late


def joined(parts: Sequence[Taken]) -> Taken:
    """The steps of several, one after another; at least one."""
    cells, tables = zip(*parts, strict=True)
    more = [np.concatenate(each) for each in zip(*tables, strict=True)]
    return StepCells.join(cells).without_zeros(), more
