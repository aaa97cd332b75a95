"""What the ids of one table in one step tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainobs.embeddings.table import Reads, WatchedTable


@dataclass(frozen=True)
class StepSample:
    """The ids of one table in one step.

    Attributes:
        asked: what was asked for, ascending.
        ids: rows of the table among it, each once.
        counts: lookups of each.
        outside_count: lookups of rows that the table does not have.
        worst: one of their ids, where there are any.
    """

    asked: NDArray[np.integer]
    ids: NDArray[np.int64]
    counts: NDArray[np.int64]
    outside_count: int
    worst: int | None

    def trained_rows(self, table: WatchedTable) -> int:
        """Rows that get a gradient: all but the one of the padding."""
        padding = table.untrained
        if padding is None:
            return len(self.ids)
        place = int(np.searchsorted(self.ids, padding))
        return len(self.ids) - (place < len(self.ids) and int(self.ids[place]) == padding)

    def bytes_by_tier(self, reads: Reads) -> NDArray[np.float64]:
        """Bytes read from each of `TIERS`; lookups of no row are in none."""
        places = np.searchsorted(reads.starts, self.ids, side="right") - 1
        of_range = np.bincount(places, weights=self.counts, minlength=len(reads.starts))
        amounts: NDArray[np.float64] = of_range @ reads.bytes
        return amounts


def sample(ids: Sequence[NDArray[np.integer]], row_count: int) -> StepSample:
    """Sort and count.

    Args:
        ids: those of all calls in the step.
        row_count: rows of their table.
    """
    asked = np.sort(ids[0] if len(ids) == 1 else np.concatenate(ids))
    new = np.empty(len(asked), dtype=bool)
    new[:1] = True
    np.not_equal(asked[1:], asked[:-1], out=new[1:])
    begins = np.flatnonzero(new)
    unique, counts = asked[begins].astype(np.int64), np.diff(begins, append=len(asked))
    if not len(unique) or (unique[0] >= 0 and unique[-1] < row_count):
        return StepSample(asked, unique, counts, 0, None)
    first, end = np.searchsorted(unique, [0, row_count])
    worst = int(unique[-1] if end < len(unique) else unique[0])
    outside = len(asked) - int(counts[first:end].sum())
    return StepSample(asked, unique[first:end], counts[first:end], outside, worst)
