"""Counts of one table's rows, in whatever form there are, as the choice of hot rows asks them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainobs.access.sketch import Sketch

_DENSE_COUNT = 1 << 16


class Classes(NamedTuple):
    """How many rows have which count.

    Attributes:
        counts: that occur, except 0, descending.
        rows: that have each.
    """

    counts: NDArray[np.int64]
    rows: NDArray[np.int64]


class RowCounts:
    """Counts of the rows of one table.

    Args:
        load: returns a count for each row, or a sketch. It is called each time that single rows
            are asked for, so that the counts of all tables are never in memory at once.
    """

    def __init__(self, load: Callable[[], NDArray[np.uint64] | Sketch]) -> None:
        self._load = load

    @cached_property
    def classes(self) -> Classes:
        """How many rows have which count; a histogram, since sorting rows would take longer."""
        values, _ = self._values()
        large = values[values >= _DENSE_COUNT]
        rows = np.bincount(values[values < _DENSE_COUNT] if len(large) else values)
        few = np.flatnonzero(rows[1:])[::-1] + 1
        many, many_rows = np.unique(large, return_counts=True)
        return Classes(
            np.concatenate([many[::-1], few]), np.concatenate([many_rows[::-1], rows[few]])
        )

    def chosen(self, least: int, more_of: int, more: int) -> NDArray[np.int64]:
        """Rows counted at least `least` times, and the first `more` of those counted `more_of`."""
        values, known = self._values()
        hot = values >= least
        hot[np.flatnonzero(values == more_of)[:more]] = True
        positions = np.flatnonzero(hot)
        return positions if known is None else known[positions]

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Counts of some rows."""
        values, known = self._values()
        if known is None:
            return values[ids]
        if not len(known):
            return np.zeros(len(ids), dtype=np.int64)
        positions = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        return np.where(known[positions] == ids, values[positions], 0)

    def _values(self) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """Counts, and the rows they are of; None if they are of every row.

        As signed numbers, which NumPy's histogram asks for; that is no copy.
        """
        counts = self._load()
        if isinstance(counts, Sketch):
            return counts.counts.view(np.int64), counts.ids
        return counts.view(np.int64), None
