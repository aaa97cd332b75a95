"""Reading Parquet files that may be cut short, foreign or damaged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainobs.core.errors import RunLogError

Check = Callable[[pa.ChunkedArray], bool]
"""Whether a column has the type, and only values, that can be worked with."""

_BOUND = 2.0**63
"""Above every number that a run log stores, and below what would turn a sum into infinity."""

_DAMAGED = (pa.ArrowException, OSError, ValueError)  # ValueError: a name that is not UTF-8


def why_unreadable(
    path: Path, columns: Mapping[str, Check], optional: Mapping[str, Check] | None = None
) -> str | None:
    """Why a file cannot be used, or None if it is whole and its columns pass their checks.

    Args:
        path: the file.
        columns: those it must have.
        optional: those it may have.
    """
    checks = {**columns, **(optional or {})}
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            return "not a regular file" if path.exists() else "no such file"
        found, table = _read(path, checks)
        wrong = [name for name in table.column_names if found.count(name) > 1]
        wrong = wrong or [name for name in table.column_names if not checks[name](table[name])]
    except _DAMAGED as error:
        return f"not a whole Parquet file ({_first_line(error)})"
    missing = [name for name in columns if name not in found]
    if missing:
        return f"without the columns {', '.join(missing)}"
    return f"with unusable values in {', '.join(dict.fromkeys(wrong))}" if wrong else None


def read_columns(path: Path, columns: Iterable[str]) -> pa.Table:
    """Some columns of a file; one that an older version did not write yet is left out.

    Raises:
        RunLogError: the file was damaged after it was found readable, or is gone.
    """
    try:
        return _read(path, set(columns))[1]
    except _DAMAGED as error:
        raise RunLogError(
            failed="A part of the run log cannot be read.",
            found=f"{path}: {_first_line(error)}",
            do="restore that file, or move it away: the rest of the run is readable without it",
        ) from error


def integers(low: int, high: float = _BOUND, *, nullable: bool = False) -> Check:
    """A check for integers in [low, high)."""

    def check(column: pa.ChunkedArray) -> bool:
        if not pa.types.is_integer(column.type) or (column.null_count and not nullable):
            return False
        return _within(column.drop_null(), low, high)

    return check


def numbers(column: pa.ChunkedArray) -> bool:
    """A check for numbers of any type, null or NaN where there is none, but finite."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)):
        return False
    return _within(column, -_BOUND, _BOUND)


def booleans(column: pa.ChunkedArray) -> bool:
    """A check for yes or no."""
    return pa.types.is_boolean(column.type) and not column.null_count


def names(known: Collection[str]) -> Check:
    """A check for strings that are all among `known`."""

    def check(column: pa.ChunkedArray) -> bool:
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            return False
        is_known = pc.is_in(column.cast(pa.string()), value_set=pa.array(known, pa.string()))
        return bool(np.all(is_known.to_numpy()))

    return check


def texts(column: pa.ChunkedArray) -> bool:
    """A check for strings, null where there is none."""
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _read(path: Path, columns: Collection[str]) -> tuple[list[str], pa.Table]:
    """Names of all columns of a file, and a table of those among `columns`."""
    # An open file, because pyarrow takes only paths that are UTF-8. Without pre-buffering and
    # threads, since a process that ends while a thread of Arrow's pools begins is aborted.
    with path.open("rb") as stream:
        file = pq.ParquetFile(stream, page_checksum_verification=True, pre_buffer=False)
        found: list[str] = file.schema_arrow.names
        table = file.read(columns=[n for n in found if n in columns], use_threads=False)
        return found, table


def _within(column: pa.ChunkedArray, low: float, high: float) -> bool:
    """Whether every number is in [low, high); what is missing is in any range."""
    values = column.cast(pa.float64(), safe=False).to_numpy()
    return bool(np.all(np.isnan(values) | ((values >= low) & (values < high))))


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
