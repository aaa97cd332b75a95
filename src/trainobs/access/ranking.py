"""Rows of several tables by lookups for each byte, and which of them a budget of bytes holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainobs.access.sketch import Blocks, Counts, Ids, blocks_of, joined
from trainobs.access.spectrum import Spectrum
from trainobs.core.native import loops

_NEVER = (1 << 64) - 1


class Threshold(NamedTuple):
    """Where a budget was full.

    Attributes:
        lookup_count: lookups of the first rows that do not all fit; 0 where the budget holds every
            row that was looked up.
        score: the same, for each byte of the row.
    """

    lookup_count: int
    score: float


class HotLimit(NamedTuple):
    """Which rows of a table are hot, told by their counts.

    Attributes:
        least: count from which all rows are.
        partly: count of which the first `more` rows are, too.
        more: a number of rows.
    """

    least: int
    partly: int
    more: int

    def hot(self, blocks: Blocks) -> tuple[Ids, Counts]:
        """The hot rows among those of the table, and their counts."""
        return joined(self._hot(blocks))

    def rows(self, counts: NDArray[np.unsignedinteger[Any]], classes: Spectrum) -> Ids:
        """The hot rows of a table, by the counts of all of its rows and their spectrum."""
        library = loops()
        if library is None or counts.dtype != np.uint32 or not counts.flags.c_contiguous:
            return self.hot(blocks_of(counts))[0]
        most = int(classes.rows[classes.counts >= np.uint64(self.least)].sum()) + self.more
        ids = np.empty(most, np.int64)
        place, to = counts.ctypes.data, ids.ctypes.data
        found = library.trainobs_hot(place, len(counts), *self, to, most)
        return ids[:found]

    def _hot(self, blocks: Blocks) -> Blocks:
        more = self.more
        for ids, counts in blocks:
            hot = counts >= np.uint64(self.least)
            at_limit = np.flatnonzero(counts == np.uint64(self.partly))[:more]
            hot[at_limit] = True
            more -= len(at_limit)
            yield ids[hot], counts[hot]


class BudgetFill(NamedTuple):
    """What a budget holds.

    Attributes:
        threshold: where it was full.
        limits: which rows of each table are hot.
        left: bytes left where it holds every row that was looked up.
    """

    threshold: Threshold
    limits: list[HotLimit]
    left: int


@dataclass(frozen=True)
class Ranking:
    """Rows of one table and count together, most lookups for a byte first.

    Equals stay in the order of their tables, and within a table the lower row comes first.

    Attributes:
        row_bytes: bytes of a row of each table.
        scores: lookups for each byte, descending.
        bytes: of all rows with that count.
        tables: number of their table.
        counts: lookups of each of the rows.
    """

    row_bytes: Sequence[int]
    scores: NDArray[np.float64]
    bytes: NDArray[np.int64]
    tables: NDArray[np.int64]
    counts: Counts

    @classmethod
    def from_spectra(cls, spectra: Sequence[Spectrum], row_bytes: Sequence[int]) -> Ranking:
        """Rank the rows of tables that take so many bytes each."""
        none = np.empty(0, np.int64)
        parts: list[tuple[NDArray[Any], ...]] = [(none * 1.0, none, none, none.astype(np.uint64))]
        for table, (spectrum, width) in enumerate(zip(spectra, row_bytes, strict=True)):
            of_table = np.full(len(spectrum.rows), table)
            scores = spectrum.counts / width
            parts.append((scores, spectrum.rows * width, of_table, spectrum.counts))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = by_score(columns[0])
        return cls(row_bytes, *(column[order] for column in columns))

    def fill(self, budget: int) -> BudgetFill:
        """Take rows in their order until the next does not fit a budget of bytes any more."""
        ends = np.cumsum(self.bytes)
        whole = int(np.searchsorted(ends, budget, side="right"))  # counts of which all rows fit
        left = budget - int(ends[whole - 1] if whole else 0)
        limits = [HotLimit(self._least(table, whole), 0, 0) for table in range(len(self.row_bytes))]
        if whole == len(ends):
            return BudgetFill(Threshold(0, 0.0), limits, left)
        table, count = int(self.tables[whole]), int(self.counts[whole])
        limits[table] = HotLimit(limits[table].least, count, left // self.row_bytes[table])
        return BudgetFill(Threshold(count, float(self.scores[whole])), limits, 0)

    def _least(self, table: int, whole: int) -> int:
        """The least count of a table among the first `whole`; above all counts if it has none."""
        own = self.counts[:whole][self.tables[:whole] == table]
        return int(own[-1]) if len(own) else _NEVER


def by_score(scores: NDArray[np.float64]) -> NDArray[np.intp]:
    """The order of descending scores, in which equals stay as they are."""
    return np.argsort(-scores, kind="stable")
