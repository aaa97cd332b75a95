"""A table of the run log in memory, as it is to be written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from trainobs.runlog.columns import Columns


class Table:
    """Some columns of a table, each of shape (n,).

    Args:
        columns: of the table; those without values are left out.
        values: column name -> its values in memory, see `Column`.
    """

    def __init__(self, columns: Columns, values: Mapping[str, npt.NDArray[Any]]) -> None:
        self.columns = tuple(column for column in columns if column.name in values)
        self.values = values

    def __len__(self) -> int:
        return len(next(iter(self.values.values()), ()))


def by_field(rows: npt.NDArray[np.void]) -> dict[str, npt.NDArray[Any]]:
    """The fields of a structured array."""
    return {name: rows[name] for name in rows.dtype.names or ()}
