"""Whether rows are hot to those that had no part in counting them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainobs.access.ranking import HotLimit
from trainobs.access.sketch import Blocks, counts_of
from trainobs.access.spectrum import Spectrum

ALIKE = 0.9
"""Of rows with about some count, the share within one of it from which on that is no chance."""


class JudgedRows:
    """What the hot rows of a table serve of other inputs.

    Args:
        spectrum: of the table.
        blocks: its rows, and how often each was looked up.
        limit: which of its rows are hot.
        width: bytes of a row.
        score: lookups for each byte at the threshold, 0 where all rows that were looked up are hot.
    """

    def __init__(
        self, spectrum: Spectrum, blocks: Blocks, limit: HotLimit, width: int, score: float
    ) -> None:
        self._partly, self._width, self._score = limit.partly, width, score
        ids, counts = limit._replace(more=limit.more + 1).hot(blocks)
        # Of the rows of which a part is hot, the first that is not: it would be, were they fewer.
        self._next = int(ids[counts == np.uint64(limit.partly)].max(initial=-1))
        self._ids, self._counts = ids[ids != self._next], counts[ids != self._next]
        self._by_all = score > 0 and _alike(spectrum, int(self._counts.min(initial=limit.least)))

    @property
    def counted(self) -> int:
        """Lookups of theirs that were counted."""
        return int(self._counts.sum())

    @property
    def served(self) -> int:
        """Lookups of the table that they serve, of those that were counted."""
        counts = self._counts.astype(np.int64)
        if not self._by_all:
            counts = counts[self._stay(self._ids, counts - 1)]
        return int(counts.sum())

    def serve(
        self, ids: NDArray[np.int64], own: NDArray[np.integer[Any]], left_ratio: float = 1.0
    ) -> NDArray[np.bool_]:
        """Whether they serve each lookup of a row, judged without so many lookups of it.

        Args:
            ids: rows.
            own: lookups of each that do not count.
            left_ratio: share of all lookups that count, where a whole step does not: with fewer
                lookups a row needs fewer to be hot.
        """
        seen = counts_of(ids, self._ids, self._counts)
        if self._by_all:
            return np.asarray(seen > (own if left_ratio < 1 else 0))
        return self._stay(ids, seen - own, left_ratio)

    def _stay(
        self, ids: NDArray[np.int64], left: NDArray[np.int64], left_ratio: float = 1.0
    ) -> NDArray[np.bool_]:
        """Whether rows are hot by the lookups that are left; without any none is."""
        score = self._score * left_ratio
        hot: NDArray[np.bool_] = (left > 0) & (left / self._width >= score)
        if score * self._width <= self._partly - 1:  # those of `_partly` are hot with room to spare
            return hot
        return np.asarray(hot & ((left != self._partly) | (ids < self._next)))


def _alike(spectrum: Spectrum, count: int) -> bool:
    """Whether rows with about some count have it by no chance, which spreads by its square root.

    A count of one may always be chance.
    """
    counts, rows = spectrum.counts, spectrum.rows
    far = np.abs(counts.astype(np.float64) - count)
    same = rows[(far <= 1) & (counts > 1)].sum()
    return bool(count > 1 and same >= ALIKE * rows[far <= 2 * math.sqrt(count)].sum())


def repeats(inputs: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often the input of each lookup looks up the same row."""
    _, rows = np.unique(ids, return_inverse=True)
    _, pair, count = np.unique(
        inputs * (rows.max(initial=0) + 1) + rows, return_inverse=True, return_counts=True
    )
    return count[pair].astype(np.int64)
