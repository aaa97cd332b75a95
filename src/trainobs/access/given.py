"""What callers give to access counts, checked."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainobs.core.errors import SettingError, a_type, shown


def checked_tables(tables: Mapping[str, int]) -> dict[str, int]:
    """Name -> number of rows, of what was given as that.

    Raises:
        SettingError: it is something else.
    """
    if not isinstance(tables, Mapping):
        raise SettingError(
            "cannot count accesses",
            f"{a_type(tables)} in the place of tables",
            "give a mapping of each table's name to its number of rows",
        )
    try:
        checked: dict[str, int] | None = {n: operator.index(r) for n, r in tables.items()}
    except TypeError:
        checked = None
    if checked is None or min(checked.values(), default=0) < 0 or sum(checked.values()) >= 1 << 63:
        raise SettingError(
            "cannot count accesses to tables of these sizes",
            ", ".join(f"{name}: {rows}" for name, rows in tables.items()),
            "give the number of rows of each table, together less than 2^63",
        )
    return checked


def check_ids(failed: str, ids: Any) -> None:
    """Raise a `SettingError` that says what failed, unless `ids` is an array of integers."""
    if isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iu":
        return
    if isinstance(ids, np.ndarray):
        found = f"an array of shape {ids.shape} and type {ids.dtype}"
    else:
        found = a_type(ids)
    raise SettingError(failed, found, "give a one-dimensional NumPy array of integers")


def check_lengths(failed: str, tables: int, ids: NDArray[np.integer[Any]], lengths: Any) -> None:
    """Raise a `SettingError` unless `lengths` are integers, a row a table, that add up to `ids`."""
    are_numbers = isinstance(lengths, np.ndarray) and lengths.dtype.kind in "iu"
    is_whole = are_numbers and lengths.ndim == 2 and len(lengths) == tables
    if is_whole and lengths.sum() == len(ids) and lengths.min(initial=0) >= 0:
        return
    kind = f"of shape {lengths.shape}" if are_numbers else f"that are no integers: {shown(lengths)}"
    raise SettingError(
        failed,
        f"{tables} tables, {len(ids)} ids, and lengths {kind}",
        "give a row of lengths for each table, and as many ids as they add up to",
    )
