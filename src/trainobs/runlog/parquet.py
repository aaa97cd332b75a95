"""Reading Parquet files that may be cut short, foreign or damaged."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainobs.core.errors import RunLogError
from trainobs.runlog.columns import BOUND, Column, Columns

_DAMAGED = (pa.ArrowException, OSError, ValueError)  # ValueError: a name that is not UTF-8


def why_unreadable(path: Path, columns: Columns) -> str | None:
    """Why a file cannot be used, or None if it is whole and its columns are what they must be."""
    checks = {column.name: column for column in columns}
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            return "not a regular file" if path.exists() else "no such file"
        found, table = _read(path, checks)
        wrong = [name for name in table.column_names if found.count(name) > 1]
        wrong = wrong or [n for n in table.column_names if not _is_sound(checks[n], table[n])]
    except _DAMAGED as error:
        return f"not a whole Parquet file ({_first_line(error)})"
    missing = [c.name for c in columns if c.name not in found and not c.is_new]
    if missing:
        return f"without the columns {', '.join(missing)}"
    return f"with unusable values in {', '.join(dict.fromkeys(wrong))}" if wrong else None


def read_columns(path: Path, columns: Iterable[str]) -> pa.Table:
    """Some columns of a file; one that an older version did not write yet is left out.

    Raises:
        RunLogError: the file was damaged after it was found readable, or is gone.
    """
    return _checked(path, set(columns))


def row_count(path: Path) -> int:
    """Rows of a file, from its footer.

    Raises:
        RunLogError: as of `read_columns`.
    """
    return len(_checked(path, ()))


def read_whole(path: Path) -> pa.Table:
    """All columns of a file.

    Raises:
        RunLogError: as of `read_columns`.
    """
    return _checked(path, None)


def _checked(path: Path, columns: Collection[str] | None) -> pa.Table:
    try:
        return _read(path, columns)[1]
    except _DAMAGED as error:
        raise RunLogError(
            failed="A part of the run log cannot be read.",
            found=f"{path}: {_first_line(error)}",
            do="restore that file, or move it away: the rest of the run is readable without it",
        ) from error


def values_of(column: Column, found: pa.ChunkedArray) -> npt.NDArray[Any]:
    """The values of a column as they are in memory: see `Column`."""
    if column.words is not None:
        found = pc.index_in(found.cast(pa.string()), value_set=pa.array(column.words, pa.string()))
    elif column.missing is not None and np.isnan(column.missing):
        found = found.cast(pa.float64(), safe=False)
    elif column.missing is not None:
        found = found.cast(pa.int64()).fill_null(column.missing)
    values: npt.NDArray[Any] = found.to_numpy()
    return values.astype(np.int64) if values.dtype.kind in "iu" else values


def _is_sound(column: Column, found: pa.ChunkedArray) -> bool:
    """Whether a column has the type, and only values, that can be worked with."""
    kind = found.type
    if column.words is not None:
        return _are_among(column.words, found)
    if np.dtype(column.dtype).kind == "S":
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
    if found.null_count and column.missing is None:
        return False
    if np.dtype(column.dtype).kind == "b":
        return bool(pa.types.is_boolean(kind))
    is_float = pa.types.is_float32(kind) or pa.types.is_float64(kind)
    if not pa.types.is_integer(kind) and not (column.is_any_number and is_float):
        return False
    if pa.types.is_int64(kind) and (column.least, column.below) == (-BOUND, BOUND):
        return True  # every int64
    low, high = pc.min_max(found).as_py().values()  # of what is neither null nor NaN
    return low is None or low != low or bool(low >= column.least and high < column.below)


def _are_among(words: Collection[str], found: pa.ChunkedArray) -> bool:
    """Whether a column is one of strings that are all among `words`."""
    kind = found.type.value_type if pa.types.is_dictionary(found.type) else found.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return False
    is_known = pc.is_in(found.cast(pa.string()), value_set=pa.array(words, pa.string()))
    return bool(np.all(is_known.to_numpy()))


def _read(path: Path, columns: Collection[str] | None) -> tuple[list[str], pa.Table]:
    """Names of all columns of a file, and a table of those among `columns`; None: of all."""
    # An open file, because pyarrow takes only paths that are UTF-8. Without pre-buffering and
    # threads, since a process that ends while a thread of Arrow's pools begins is aborted.
    with path.open("rb") as stream:
        file = pq.ParquetFile(stream, page_checksum_verification=True, pre_buffer=False)
        found: list[str] = file.schema_arrow.names
        wanted = None if columns is None else [n for n in found if n in columns]
        table = file.read(columns=wanted, use_threads=False)
        return found, table


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
