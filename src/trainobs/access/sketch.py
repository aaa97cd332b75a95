"""What is known of the counts of a table that is too large for a counter a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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


def gather(blocks: Blocks, error: int, total: int) -> Sketch:
    """The sketch whose rows come in blocks."""
    parts = list(blocks) or [(np.empty(0, np.int64), np.empty(0, np.uint64))]
    ids, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Sketch(ids, counts, error, total)


def hottest(blocks: Blocks, count: int) -> tuple[Ids, Counts]:
    """The `count` rows with the highest counts, descending; of equals the lower row is first."""
    ids, counts = np.empty(0, np.int64), np.empty(0, np.uint64)
    floor = np.uint64(0)
    for block_ids, block_counts in blocks if count > 0 else ():
        better = block_counts > floor  # not >=: among equals the rows of earlier blocks come first
        ids = np.concatenate((ids, block_ids[better]))
        counts = np.concatenate((counts, block_counts[better]))
        if len(ids) > 2 * count + BLOCK_ROWS:
            ids, counts, floor = _cut(ids, counts, count)
    if len(ids) > count > 0:
        ids, counts, _ = _cut(ids, counts, count)
    order = np.lexsort((ids, ~counts))
    return ids[order], counts[order]


def _cut(ids: Ids, counts: Counts, count: int) -> tuple[Ids, Counts, np.uint64]:
    """The highest `count` of more rows, still ascending, and the lowest count among them."""
    level = np.partition(counts, -count)[-count]
    keep = counts > level
    keep[np.flatnonzero(counts == level)[: count - np.count_nonzero(keep)]] = True
    return ids[keep], counts[keep], level
