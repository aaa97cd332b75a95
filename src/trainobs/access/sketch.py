"""What is known of the counts of a table that is too large for a counter a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Counts = NDArray[np.uint64]
Blocks = Iterator[tuple[Ids, Counts]]
"""Rows that were looked up, ascending, a bounded number at a time."""

BLOCK_ROWS = 1 << 16
"""Rows that are handled at once where a whole table would take too much memory."""


@dataclass(frozen=True)
class Sketch:
    """Counts of the rows of one table that were looked up most.

    Attributes:
        ids: rows, ascending.
        counts: lookups of each of `ids`, never more than there were.
        error: a true count lies in [count, count + error]; that of a row that is not in `ids` lies
            in [0, error]. With 0 every count is exact, and rows that are not here have none.
        total: lookups of all rows of the table.
    """

    ids: Ids
    counts: Counts
    error: int
    total: int


def blocks_of(counts: NDArray[np.unsignedinteger[Any]], ids: Ids | None = None) -> Blocks:
    """Rows with their counts; without `ids` there is a count for every row."""
    for first in range(0, len(counts), BLOCK_ROWS):
        block = counts[first : first + BLOCK_ROWS]
        if ids is not None:
            yield ids[first : first + BLOCK_ROWS], block.astype(np.uint64)
        else:
            rows = np.flatnonzero(block != 0)
            yield rows + first, block[rows].astype(np.uint64)


def joined(blocks: Blocks) -> tuple[Ids, Counts]:
    """All rows that come in blocks."""
    parts = list(blocks) or [(np.empty(0, np.int64), np.empty(0, np.uint64))]
    ids, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
    return ids, counts


def rows_among(ids: Ids, row_count: int) -> Ids:
    """Those of `ids` that are rows of a table: all, in most calls."""
    if not len(ids) or int(ids.view(np.uint64).max()) < row_count:  # so, negative ones are large
        return ids
    return ids[(ids >= 0) & (ids < row_count)]


def places(ids: Ids, ordered: Ids) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Which of `ids` are in an ascending array, and where these are: (found,), (ids,)."""
    if not len(ordered):
        return np.empty(0, np.intp), np.zeros(len(ids), np.bool_)
    at = np.minimum(np.searchsorted(ordered, ids), len(ordered) - 1)
    is_known = ordered[at] == ids
    return at[is_known], is_known


def counts_of(ids: Ids, known: Ids, counts: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.int64]:
    """Counts of rows by their ids; 0 of those that are not among the ascending `known`."""
    at, is_known = places(ids, known)
    found = np.zeros(len(ids), np.int64)
    found[is_known] = counts[at]
    return found
