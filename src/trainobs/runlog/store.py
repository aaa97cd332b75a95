"""Tables of the run log on their way to the disk.

What encodes them is imported with the first table that is stored: pyarrow takes a tenth of a second
and some 29 MiB, which the start of a training is spared.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainobs.core.files import replace_file
from trainobs.core.unforked import unforked
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


def by_field(rows: npt.NDArray[np.void]) -> dict[str, npt.NDArray[Any]]:
    """The fields of a structured array."""
    return {name: rows[name] for name in rows.dtype.names or ()}


def store(path: Path, table: Table) -> None:
    """Write a file that a reader finds whole, or as it was.

    Raises:
        OSError: the disk refused.
    """
    with unforked():
        from trainobs.runlog.arrow import encode
    replace_file(path, encode(table))
