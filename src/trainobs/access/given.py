"""What callers give to access counts, checked."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from trainobs.core.errors import SettingError, a_type


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
