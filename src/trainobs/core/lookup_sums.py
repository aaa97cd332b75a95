"""Lookups summed by table: what a window of steps or a whole run comes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from trainobs.core.catalogue.embeddings import QUOTIENTS
from trainobs.core.embedding_table import LOOKUP_FIELDS
from trainobs.core.quotients import Floats, divided

Rows = npt.NDArray[np.void] | Mapping[str, npt.NDArray[Any]]
"""Rows of `LOOKUP_ROW`, or their columns by name."""

_PLACE = {name: index for index, name in enumerate(LOOKUP_FIELDS)}


class LookupSums:
    """Sums of the rows of each table; memory does not grow with the steps.

    What needs ids is known in sampled steps only. Its mean is taken over those, and a ratio is
    formed from the sums of rows in which both of its parts are known.

    Args:
        table_count: tables of the run.
    """

    def __init__(self, table_count: int) -> None:
        shape = (len(LOOKUP_FIELDS), table_count)
        self.row_count = np.zeros(table_count)
        self._sums, self._known = np.zeros(shape), np.zeros(shape)
        self._parts = {name: np.zeros((2, table_count)) for name in QUOTIENTS}

    def add(self, rows: Rows) -> None:
        """Take more rows."""
        tables, count = rows["table"], len(self.row_count)
        self.row_count += np.bincount(tables, minlength=count)
        for field, index in _PLACE.items():
            values = rows[field]
            known = ~np.isnan(values)
            filled = np.where(known, values, 0.0)
            self._sums[index] += np.bincount(tables, filled, minlength=count)
            self._known[index] += np.bincount(tables, known, minlength=count)
        for name, quotient in QUOTIENTS.items():
            part, whole = rows[quotient.part], rows[quotient.whole]
            known = ~(np.isnan(part) | np.isnan(whole))
            for sums, values in zip(self._parts[name], (part, whole), strict=True):
                sums += np.bincount(tables, np.where(known, values, 0.0), minlength=count)

    def merge(self, other: LookupSums) -> None:
        """Take the rows that another one of the same tables took."""
        self.row_count += other.row_count
        self._sums += other._sums
        self._known += other._known
        for name, sums in self._parts.items():
            sums += other._parts[name]

    def total(self, field: str) -> Floats:
        """Sum of an amount by table; NaN where it is not known in every row. Shape (tables,)."""
        index = _PLACE[field]
        whole = (self._known[index] == self.row_count) & (self.row_count > 0)
        return np.where(whole, self._sums[index], np.nan)

    def mean(self, field: str, step_count: int) -> Floats:
        """Amount of one of `step_count` steps, by table; NaN where unknown. Shape (tables,).

        A step in which a table served nothing counts as zero. What is known in sampled steps only
        is taken to be the same, on average, in the others in which the table served something.
        """
        known = self._known[_PLACE[field]]
        served = self.row_count / max(1, step_count)
        return divided(self._sums[_PLACE[field]] * served, known)

    def ratio(self, name: str) -> Floats:
        """A ratio of `QUOTIENTS` by table; NaN where unknown. Shape (tables,)."""
        return QUOTIENTS[name].of(*self._parts[name])

    def ratio_of_all(self, name: str) -> float:
        """The same over all tables together."""
        return float(QUOTIENTS[name].of(*self._parts[name].sum(axis=1)))
