"""How many rows of a table have which count: all that skew depends on, in little memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainobs.access.sketch import Blocks, Counts, Sketch
from trainobs.core.native import loops

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
            distinct, of_each = histogram(counts)
            return cls(distinct, of_each, len(counts), int((distinct * of_each.view("u8")).sum()))
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

    Low counts by a histogram, since to sort them would take longer.
    """
    rows, high = _in_c(counts) or _in_numpy(counts[counts != 0])
    low = np.flatnonzero(rows[1:]) + 1
    high, high_rows = np.unique(high, return_counts=True)
    return (
        np.concatenate((low, high.view(np.int64)))[::-1].view(np.uint64),
        np.concatenate((rows[low], high_rows))[::-1],
    )


def _in_numpy(seen: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], Counts]:
    """How many there are of each low count, by the count; and the high ones."""
    # As signed numbers, which NumPy's histogram asks for; that is no copy.
    values = seen.astype(np.uint64, copy=False).view(np.int64)
    high = values[values >= _HISTOGRAM_COUNTS]
    rows = np.bincount(values[values < _HISTOGRAM_COUNTS] if len(high) else values)
    return rows, high.view(np.uint64)


def _in_c(counts: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], Counts] | None:
    """The same, of counters; None where they or the part in C are not so."""
    library = loops()
    if library is None or counts.dtype != np.uint32 or not counts.flags.c_contiguous:
        return None
    rows = np.zeros(_HISTOGRAM_COUNTS, np.int64)
    place, size = counts.ctypes.data, len(counts)
    above = library.trainobs_histogram(place, size, rows.ctypes.data, len(rows))
    high = counts[counts >= _HISTOGRAM_COUNTS] if above else counts[:0]
    return rows, high.astype(np.uint64)
