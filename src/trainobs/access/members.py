"""What is known of the row of each lookup: whether it is hot, how often it was looked up."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainobs.access.sketch import Ids
from trainobs.core.native import loops

Flags = NDArray[np.bool_]


def are_among(rows: Ids, row_count: int, lookups_of: Sequence[Ids]) -> list[Flags]:
    """Whether each lookup is of one of some rows.

    Args:
        rows: in any order.
        row_count: of the table.
        lookups_of: of each of several features, ids that are rows of the table.

    Raises:
        IndexError: an id is above the last row.
    """
    library = loops()
    if library is not None and (flags := _in_c(library, rows, row_count, lookups_of)) is not None:
        return flags
    is_one = np.zeros(row_count, np.bool_)
    is_one[rows] = True
    return [is_one.take(ids) for ids in lookups_of]


def counts_at(ids: Ids, counts: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.integer[Any]]:
    """The count of the row of each lookup.

    Args:
        ids: rows of the table.
        counts: of each row.

    Raises:
        IndexError: an id is above the last row.
    """
    library = loops()
    is_fit = counts.dtype == np.uint32 and counts.flags.c_contiguous and _is_dense(ids)
    if library is not None and is_fit:
        found = np.empty(len(ids), np.uint32)
        read = ids.ctypes.data, len(ids), counts.ctypes.data, len(counts)
        if library.trainobs_counts(*read, found.ctypes.data) == 0:
            return found
    return counts.take(ids)


def _in_c(
    library: CDLL, rows: Ids, row_count: int, lookups_of: Sequence[Ids]
) -> list[Flags] | None:
    """The same; None where C cannot read an array, or an id is no row: NumPy says so."""
    bits, found = np.zeros(row_count // 8 + 1, np.uint8), []
    if not all(map(_is_dense, (rows, *lookups_of))):
        return None
    place = bits.ctypes.data
    if library.trainobs_set_bits(rows.ctypes.data, len(rows), place, row_count) < 0:
        return None
    for ids in lookups_of:
        found.append(flags := np.empty(len(ids), np.bool_))
        to = flags.ctypes.data
        if library.trainobs_are_set(ids.ctypes.data, len(ids), place, row_count, to) < 0:
            return None
    return found


def _is_dense(ids: Ids) -> bool:
    return ids.dtype == np.int64 and ids.flags.c_contiguous
