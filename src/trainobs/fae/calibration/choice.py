"""Which rows are hot: those looked up most for the bytes they take, until the budget is full."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainobs.access.members import counts_at
from trainobs.access.ranking import HotLimit, Ranking, Threshold
from trainobs.access.sketch import Sketch, blocks_of, counts_of, joined
from trainobs.access.spectrum import Spectrum
from trainobs.fae.calibration.threads import each
from trainobs.fae.profile.model_tables import ModelTable, left_out, sharing

SMALL_TABLES_RATIO = 0.05
"""Share of the budget that whole small tables may take before rows are ranked."""


class Choice(NamedTuple):
    """Hot rows of each table, and how they were found.

    Attributes:
        hot_ids: of each table, ascending.
        threshold: where the budget was full.
        classes: rows of the tables that were ranked, by score: what hot rows take at other
            thresholds.
        small_bytes: what tables took that are hot as a whole because they are small.
    """

    hot_ids: Mapping[str, NDArray[np.int64]]
    threshold: Threshold
    classes: Ranking
    small_bytes: int

    def bytes_at(self, score: float) -> int:
        """What hot rows would take with another threshold of lookups for each byte."""
        ranked = self.classes.bytes[self.classes.scores >= score]
        return self.small_bytes + int(ranked.sum())


class RowCounts:
    """Counts of the rows of one table.

    Args:
        load: returns a count for each row, or a sketch. It is called each time that single rows
            are asked for, so that the counts of all tables are never in memory at once.
    """

    def __init__(self, load: Callable[[], NDArray[np.unsignedinteger[Any]] | Sketch]) -> None:
        self._load = load
        self._classes: Spectrum | None = None

    @property
    def classes(self) -> Spectrum:
        """How many rows have which count."""
        if self._classes is None:
            self._classes = Spectrum.from_counts(self._load())
        return self._classes

    @classmethod
    def together(cls, tables: Sequence[RowCounts]) -> RowCounts:
        """Counts of the same rows in several tables, added up."""
        if len(tables) == 1:
            return tables[0]
        return cls(lambda: _added([table._load() for table in tables]))

    def hot(self, limit: HotLimit) -> NDArray[np.int64]:
        """The rows that are hot at a limit."""
        counts = self._load()
        if isinstance(counts, Sketch):
            return limit.hot(blocks_of(counts.counts, counts.ids))[0]
        return limit.rows(counts, self.classes)

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.integer[Any]]:
        """Counts of some rows."""
        counts = self._load()
        if isinstance(counts, Sketch):
            return counts_of(ids, counts.ids, counts.counts)
        return counts_at(ids, counts)


def choose(tables: Sequence[ModelTable], counts: Mapping[str, RowCounts], budget: int) -> Choice:
    """Choose hot rows by their counts.

    Small tables come first, whole, smallest first, as long as they take no more than
    `SMALL_TABLES_RATIO` of the budget together: no input is then cold for their sake. The rows of
    the others are ranked over all tables by lookups for each byte. Where the budget would hold
    every row that was looked up, tables are completed with the rows that were not, as long as a
    whole table fits. The work is a histogram of counts for each table; rows are not sorted.

    Tables that share a feature get the same hot rows, chosen by what all of them take and serve: a
    lookup of that feature is hot in all of them or in none. If they differ in their number of rows,
    no row of them is hot.

    Args:
        tables: of the model.
        counts: of each table's rows.
        budget: bytes for weights and optimizer state of hot rows; never exceeded. Rows of equal
            count at the limit are taken from the first table's first row on.
    """
    apart = left_out(tables)
    groups = [group for group in sharing(tables) if group[0].name not in apart]
    joint = {g[0].name: RowCounts.together([counts[t.name] for t in g]) for g in groups}
    wide = [g[0]._replace(row_bytes=sum(table.row_bytes for table in g)) for g in groups]
    small = _small(wide, budget)
    small_bytes = sum(table.total_bytes for table in small)
    ranked = [table for table in wide if table not in small]
    spectra = list(each(lambda table: joint[table.name].classes, ranked))
    ranking = Ranking.from_spectra(spectra, [table.row_bytes for table in ranked])
    threshold, limits, left = ranking.fill(budget - small_bytes)
    hot_ids = {table.name: np.arange(table.row_count, dtype=np.int64) for table in small}
    hot = each(
        lambda limited: joint[limited[0].name].hot(limited[1]), zip(ranked, limits, strict=True)
    )
    hot_ids.update(zip((table.name for table in ranked), hot, strict=True))
    _complete(ranked, joint, hot_ids, left)
    of_table = {table.name: hot_ids[group[0].name] for group in groups for table in group}
    none = np.empty(0, dtype=np.int64)
    in_order = {table.name: of_table.get(table.name, none) for table in tables}
    return Choice(in_order, threshold, ranking, small_bytes)


def _added(parts: Sequence[NDArray[np.uint64] | Sketch]) -> NDArray[np.uint64] | Sketch:
    """The sum of the counts of tables of one size; a sketch where one is a sketch."""
    arrays = [part for part in parts if not isinstance(part, Sketch)]
    sketches = [part for part in parts if isinstance(part, Sketch)]
    total = np.asarray(np.sum(arrays, axis=0, dtype=np.uint64)) if arrays else None
    if not sketches:
        assert total is not None
        return total
    blocks = [(part.ids, part.counts) for part in sketches]
    if total is not None:
        blocks += blocks_of(total)
    ids, counts = joined(iter(blocks))
    unique, places = np.unique(ids, return_inverse=True)
    sums = np.zeros(len(unique), dtype=np.uint64)
    np.add.at(sums, places, counts.astype(np.uint64))
    error = sum(part.error for part in sketches)
    return Sketch(unique, sums, error, int(sums.sum()))


def _small(tables: Sequence[ModelTable], budget: int) -> list[ModelTable]:
    by_size = sorted(tables, key=lambda table: table.total_bytes)
    ends = np.cumsum([table.total_bytes for table in by_size])
    return by_size[: int(np.searchsorted(ends, SMALL_TABLES_RATIO * budget, side="right"))]


def _complete(
    tables: Sequence[ModelTable],
    counts: Mapping[str, RowCounts],
    hot_ids: dict[str, NDArray[np.int64]],
    left: int,
) -> None:
    """Take in the rest of tables of which every row seen is hot, most promising bytes first.

    Rows seen once tell how often an unseen row is to be expected (Good 1953).
    """

    def promise(table: ModelTable) -> float:
        classes = counts[table.name].classes
        once = int(classes.rows[-1]) if len(classes.rows) and classes.counts[-1] == 1 else 0
        unseen = table.row_count - len(hot_ids[table.name])
        return once / max(unseen, 1) / table.row_bytes

    for table in sorted(tables, key=promise, reverse=True):
        missing = (table.row_count - len(hot_ids[table.name])) * table.row_bytes
        if missing <= left:
            hot_ids[table.name] = np.arange(table.row_count, dtype=np.int64)
            left -= missing
