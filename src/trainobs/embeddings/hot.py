"""The hottest rows of each table so far, and how many of a step's lookups went to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainobs.access import AccessCounts
from trainobs.access.sketch import counts_of
from trainobs.core.embedding_table import EmbeddingTable

GROWTH = 2
"""The hottest rows are looked for again when the lookups counted have grown so many times."""

RENEWED_AT_ONCE = 4
"""Tables whose hottest rows are looked for in one step; others wait for the next sample."""

_MAX_MAPPED_ROWS = 1 << 20


class _Hot(NamedTuple):
    """Hot rows of a table: 2 for the hottest 1 %, 1 for the rest of the hottest 10 %."""

    ids: NDArray[np.int64] | None
    """Ascending; None: `marks` has one for each row of the table."""
    marks: NDArray[np.uint8]


class HottestRows:
    """Looks the hottest rows up in access counts, now and then.

    A step's lookups are compared with the rows that were hottest before it.

    Args:
        tables: the tables of the run.
        counts: their access counts, to which others add.
    """

    def __init__(self, tables: Sequence[EmbeddingTable], counts: AccessCounts) -> None:
        self._tables = tables
        self._counts = counts
        self._hot: list[_Hot | None] = [None] * len(tables)
        self._known_at = [0] * len(tables)
        self._renewals_left = RENEWED_AT_ONCE

    def begin_step(self) -> None:
        """Another step is sampled."""
        self._renewals_left = RENEWED_AT_ONCE

    def served(
        self, table: int, ids: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> tuple[float, float]:
        """Lookups that the hottest 1 % and 10 % of the rows served; NaN before any are known.

        Args:
            table: index of the table.
            ids: rows, ascending.
            counts: lookups of each.
        """
        hot = self._renewed(table)
        if hot is None:
            return math.nan, math.nan
        if hot.ids is None:
            marks = hot.marks[ids].astype(np.int64)
        else:
            marks = counts_of(ids, hot.ids, hot.marks)
        return float(counts[marks == 2].sum()), float(counts[marks > 0].sum())

    def _renewed(self, table: int) -> _Hot | None:
        info = self._tables[table]
        total = self._counts.total(info.name)
        if self._renewals_left and total >= max(1, GROWTH * self._known_at[table]):
            self._renewals_left -= 1
            self._known_at[table] = total
            self._hot[table] = self._look(info)
        return self._hot[table]

    def _look(self, info: EmbeddingTable) -> _Hot | None:
        ids, counts = self._counts.hottest(info.name, math.ceil(info.row_count / 10))
        ids = ids[counts > 0]
        if len(ids) == 0:
            return None
        marks = np.ones(len(ids), dtype=np.uint8)
        marks[: math.ceil(info.row_count / 100)] = 2
        if info.row_count <= _MAX_MAPPED_ROWS:
            mapped = np.zeros(info.row_count, dtype=np.uint8)
            mapped[ids] = marks
            return _Hot(None, mapped)
        order = np.argsort(ids)
        return _Hot(ids[order], marks[order])
