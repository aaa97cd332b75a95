"""Kernel cells of steps, as they go from the kernel's ring to the sinks.

A row of the kernel has `WORDS` numbers, of which a busy step changes a hundred. Only these are
kept: to copy and add up the rest made up most of what the observer's thread did.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import CELL, CELLS_SHAPE, FIELDS

WORDS = len(FIELDS) * int(np.prod(CELLS_SHAPE))
"""Numbers in a row of the kernel."""

Places = npt.NDArray[np.intp]
Words = npt.NDArray[np.uint64]


class StepCells:
    """Kernel cells of n steps, without the numbers that are 0 in all of them.

    Attributes:
        places: where the numbers are in a row taken as a flat array of `WORDS` words, ascending;
            shape (k,).
        values: shape (n, k). Those of several steps lie in memory by column.
    """

    __slots__ = ("places", "values")

    def __init__(self, places: Places, values: Words) -> None:
        self.places = places
        self.values = values

    @classmethod
    def from_rows(cls, rows: npt.NDArray[np.void]) -> StepCells:
        """Those of whole rows: `CELL` of shape (n, op, class, role)."""
        words = np.ascontiguousarray(rows, CELL).view("<u8").reshape(len(rows), WORDS)
        places = np.flatnonzero(words.any(axis=0))
        return cls(places, words[:, places])

    @classmethod
    def join(cls, parts: Sequence[StepCells]) -> StepCells:
        """The steps of several, one after another; at least one."""
        if len(parts) == 1:
            return parts[0]
        places = parts[0].places
        for part in parts[1:]:
            if part.places is not places and not np.array_equal(places, part.places):
                places = np.union1d(places, part.places)
        columns = np.zeros((len(places), sum(map(len, parts))), np.uint64)
        first = 0
        for part in parts:
            rows = slice(first, first + len(part))
            if part.places is places:
                columns[:, rows] = part.values.T
            else:
                columns[np.searchsorted(places, part.places), rows] = part.values.T
            first = rows.stop
        return cls(places, columns.T)

    def without_zeros(self) -> StepCells:
        """Without the numbers that are 0 in all steps."""
        used = np.asarray(self.values.any(axis=0))
        return self if used.all() else self.only(used)

    def only(self, some: npt.NDArray[np.bool_]) -> StepCells:
        """Some of the numbers: of each, whether it is among them. Shape (k,)."""
        return StepCells(self.places[some], self.values.T[some].T)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice | npt.NDArray[np.bool_]) -> StepCells:
        return StepCells(self.places, self.values[rows])

    def plus(self, row: int, other: StepCells) -> StepCells:
        """With the one step of `other` added to the step at `row`."""
        places = np.union1d(self.places, other.places)
        values = self._at(places)
        values[row] += other._at(places)[0]
        return StepCells(places, values)

    def rows(self) -> npt.NDArray[np.void]:
        """Whole rows: `CELL` of shape (n, op, class, role)."""
        words = self._at(np.arange(WORDS))
        return words.view(CELL).reshape(len(self), *CELLS_SHAPE)

    def _at(self, places: Places) -> Words:
        """The numbers at `places`, which hold all of mine; a copy."""
        values = np.zeros((len(self), len(places)), np.uint64)
        values[:, np.searchsorted(places, self.places)] = self.values
        return values
