"""Which rows are hot: those looked up most for the bytes they take, until the budget is full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainobs.fae.calibrate.row_counts import RowCounts
from trainobs.fae.profile.model_tables import ModelTable

SMALL_TABLES_RATIO = 0.05
"""Share of the budget that whole small tables may take before rows are ranked."""


class Threshold(NamedTuple):
    """Where the budget was full.

    Attributes:
        lookup_count: lookups counted of the coldest row that its count made hot; 0 where the
            budget held every row that was looked up.
        score: the same, for each byte of the row.
    """

    lookup_count: int
    score: float


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


class Ranking(NamedTuple):
    """Rows of one table and count, best first."""

    scores: NDArray[np.float64]
    bytes: NDArray[np.int64]
    tables: NDArray[np.int64]
    counts: NDArray[np.int64]


def choose(tables: Sequence[ModelTable], counts: Mapping[str, RowCounts], budget: int) -> Choice:
    """Choose hot rows by their counts.

    Small tables come first, whole, smallest first, as long as they take no more than
    `SMALL_TABLES_RATIO` of the budget together: no input is then cold for their sake. The rows of
    the others are ranked over all tables by lookups for each byte. Where the budget would hold
    every row that was looked up, tables are completed with the rows that were not, as long as a
    whole table fits. The work is a histogram of counts for each table; rows are not sorted.

    Args:
        tables: of the model.
        counts: of each table's rows.
        budget: bytes for weights and optimizer state of hot rows; never exceeded. Rows of equal
            count at the limit are taken from the first table's first row on.
    """
    small = _small(tables, budget)
    small_bytes = sum(table.total_bytes for table in small)
    ranked = [table for table in tables if table not in small]
    ranking = _rank(ranked, counts)
    ends = small_bytes + np.cumsum(ranking.bytes)
    whole = int(np.searchsorted(ends, budget, side="right"))  # classes that fit as a whole
    left = budget - int(ends[whole - 1] if whole else small_bytes)
    partly = int(ranking.tables[whole]) if whole < len(ends) else -1
    at_limit = int(ranking.counts[whole]) if whole < len(ends) else 0
    hot_ids = {table.name: np.arange(table.row_count, dtype=np.int64) for table in small}
    for i, table in enumerate(ranked):
        more = left // table.row_bytes if i == partly else 0
        least = _least(ranking, i, whole)
        hot_ids[table.name] = counts[table.name].chosen(least, at_limit, more)
    if partly < 0:
        _complete(ranked, counts, hot_ids, left)
    in_order = {table.name: hot_ids[table.name] for table in tables}
    score = float(ranking.scores[whole]) if whole < len(ends) else 0.0
    return Choice(in_order, Threshold(at_limit, score), ranking, small_bytes)


def _small(tables: Sequence[ModelTable], budget: int) -> list[ModelTable]:
    by_size = sorted(tables, key=lambda table: table.total_bytes)
    ends = np.cumsum([table.total_bytes for table in by_size])
    return by_size[: int(np.searchsorted(ends, SMALL_TABLES_RATIO * budget, side="right"))]


def _rank(tables: Sequence[ModelTable], counts: Mapping[str, RowCounts]) -> Ranking:
    none = np.empty(0, dtype=np.int64)
    parts: list[list[NDArray[Any]]] = [[none.astype(np.float64)], [none], [none], [none]]
    for i, table in enumerate(tables):
        values, rows = counts[table.name].classes
        new = (values / table.row_bytes, rows * table.row_bytes, np.full(len(rows), i), values)
        for part, column in zip(parts, new, strict=True):
            part.append(column)
    columns = [np.concatenate(part) for part in parts]
    order = np.argsort(-columns[0], kind="stable")  # equal scores: the first table first
    return Ranking(*(column[order] for column in columns))


def _least(ranking: Ranking, table: int, whole: int) -> int:
    """The least count of a table among the first `whole` classes; above all counts if none."""
    own = ranking.counts[:whole][ranking.tables[:whole] == table]
    return int(own[-1]) if len(own) else np.iinfo(np.int64).max


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
        values, rows = counts[table.name].classes
        once = int(rows[-1]) if len(values) and values[-1] == 1 else 0
        unseen = table.row_count - len(hot_ids[table.name])
        return once / max(unseen, 1) / table.row_bytes

    for table in sorted(tables, key=promise, reverse=True):
        missing = (table.row_count - len(hot_ids[table.name])) * table.row_bytes
        if missing <= left:
            hot_ids[table.name] = np.arange(table.row_count, dtype=np.int64)
            left -= missing
