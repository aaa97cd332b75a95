"""How many rows of a table have which count: all that skew depends on, in little memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainobs.access.sketch import Blocks, Counts, Sketch

_HISTOGRAM_COUNTS = 1 << 16


@dataclass(frozen=True)
class Spectrum:
    """The counts of a table without its ids.

    Attributes:
        counts: the different counts above zero, descending.
        rows: how many rows have each of `counts`.
        row_count: rows of the table.
        total: lookups of the table.
        error: by how much a count can be too low.
    """

    counts: Counts
    rows: NDArray[np.int64]
    row_count: int
    total: int
    error: int = 0

    @classmethod
    def from_counts(
        cls, counts: NDArray[np.unsignedinteger[Any]] | Sketch, row_count: int | None = None
    ) -> Spectrum:
        """The spectrum of what `AccessCounts.counts` or `counters` returned.

        Args:
            counts: of every row, or a sketch.
            row_count: rows of the table; needed for a sketch only.
        """
        if not isinstance(counts, Sketch):
            seen = counts[counts != 0].astype(np.uint64)  # few of many: the rest is quick then
            return cls(*histogram(seen), len(counts), int(seen.sum()))
        rows = len(counts.ids) if row_count is None else row_count
        return cls(*histogram(counts.counts), rows, counts.total, counts.error)

    @classmethod
    def from_blocks(cls, blocks: Blocks, row_count: int, total: int, error: int) -> Spectrum:
        """The spectrum of rows that come in blocks; takes memory for one of them at a time."""
        distinct, sums = np.empty(0, np.uint64), np.empty(0, np.int64)
        for _, counts in blocks:
            values, rows = histogram(counts)
            distinct, place = np.unique(np.concatenate((distinct, values)), return_inverse=True)
            rows, sums = np.concatenate((sums, rows)), np.zeros(len(distinct), np.int64)
            np.add.at(sums, place, rows)
        return cls(distinct[::-1], sums[::-1], row_count, total, error)


def histogram(counts: NDArray[np.integer[Any]]) -> tuple[Counts, NDArray[np.int64]]:
    """The different counts above zero, descending, and how many there are of each.

    Low counts by a histogram, since to sort them would take longer. As signed numbers, which
    NumPy's histogram asks for; that is no copy.
    """
    values = counts.astype(np.uint64, copy=False).view(np.int64)
    high = values[values >= _HISTOGRAM_COUNTS]
    rows = np.bincount(values[values < _HISTOGRAM_COUNTS] if len(high) else values)
    low = np.flatnonzero(rows[1:]) + 1
    high, high_rows = np.unique(high, return_counts=True)
    return (
        np.concatenate((low, high))[::-1].view(np.uint64),
        np.concatenate((rows[low], high_rows))[::-1],
    )
