"""How many rows of a table have which count: all that skew depends on, in little memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainobs.access.sketch import Blocks, Counts, Sketch


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
        cls, counts: NDArray[np.uint64] | Sketch, row_count: int | None = None
    ) -> Spectrum:
        """The spectrum of what `AccessCounts.counts` returned.

        Args:
            counts: of every row, or a sketch.
            row_count: rows of the table; needed for a sketch only.
        """
        if not isinstance(counts, Sketch):
            return cls._of(counts, len(counts), int(counts.sum()), 0)
        rows = len(counts.ids) if row_count is None else row_count
        return cls._of(counts.counts, rows, counts.total, counts.error)

    @classmethod
    def of_blocks(cls, blocks: Blocks, row_count: int, total: int, error: int) -> Spectrum:
        """The spectrum of rows that come in blocks; takes memory for one of them at a time."""
        done = cls._of(np.empty(0, np.uint64), row_count, total, error)
        for _, counts in blocks:
            block = cls._of(counts, row_count, total, error)
            values = np.concatenate((done.counts, block.counts))
            rows = np.concatenate((done.rows, block.rows))
            distinct, place = np.unique(values, return_inverse=True)
            sums = np.zeros(len(distinct), np.int64)
            np.add.at(sums, place, rows)
            done = cls(distinct[::-1], sums[::-1], row_count, total, error)
        return done

    @classmethod
    def _of(cls, counts: Counts, row_count: int, total: int, error: int) -> Spectrum:
        values, rows = np.unique(counts[counts > 0], return_counts=True)
        return cls(values[::-1], rows[::-1].astype(np.int64), row_count, total, error)
