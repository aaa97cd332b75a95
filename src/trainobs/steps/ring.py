"""The kernel's ring of step rows, as the collector reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import CELL, FIELDS, RING
from trainobs.core.cells import StepCells, Words

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
        self._cells = kernel.rows.reshape(RING, -1).view(_WHOLE)
        self._touched = kernel.touched.reshape(-1)
        self._tables = [kernel.latency, *more]
        self._looked_at = b""
        self._used = self._places = np.empty(0, np.intp)
        self._seen_rows = np.empty((RING, 0), np.uint64)
        self._seen_tables = [np.zeros_like(table) for table in self._tables]

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
        count = len(serials)
        slots = np.array([*serials, *at_rest]) % RING
        values = self._cells[slots[:, None], self._used].view("<u8")
        grown = values - self._seen_rows[slots]
        late = grown[count:, _COUNTS].sum(axis=1).tolist()
        taken = slots[:count]
        self._seen_rows[taken] = values[:count]
        grown_tables = []
        for table, seen in zip(self._tables, self._seen_tables, strict=True):
            now = table[taken]
            grown_tables.append(now - seen[taken])
            seen[taken] = now
        return (StepCells(self._places, grown[:count]), grown_tables), late

    def _look_at(self, touched: bytes) -> None:
        """Read more cells from now on: nothing was in them, in any slot, until now."""
        cells = np.flatnonzero(np.frombuffer(touched, np.uint8))
        places = (cells[:, None] * len(FIELDS) + np.arange(len(FIELDS))).ravel()
        seen = np.zeros((RING, len(places)), np.uint64)
        seen[:, np.searchsorted(places, self._places)] = self._seen_rows
        self._used, self._places, self._seen_rows = cells, places, seen
        self._looked_at = touched


_WHOLE = np.dtype((np.void, CELL.itemsize))
"""A cell as one thing to copy: field by field it takes ten times as long."""

_COUNTS = slice(FIELDS.index("count"), None, len(FIELDS))
"""The counts among the numbers of cells."""


def joined(parts: Sequence[Taken]) -> Taken:
    """The steps of several, one after another; at least one."""
    cells, tables = zip(*parts, strict=True)
    more = [np.concatenate(each) for each in zip(*tables, strict=True)]
    return StepCells.join(cells).without_zeros(), more
