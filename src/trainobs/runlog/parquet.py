"""Reading Parquet files that may be cut short, foreign or damaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainobs.core.errors import RunLogError
from trainobs.core.files import NotRegularError, open_regular
from trainobs.runlog.columns import BOUND, Column, Columns

MOST_VALUES = 1 << 24
"""Numbers in a file: 134 MB in memory. The largest parts are of steps that a disk refused for long:
8192 of them, and up to 256 rows of `kernel` for each."""

MOST_BYTES = 8 * MOST_VALUES
"""Of a file when it is unpacked."""

_TEXTS_AT_ONCE = 64

_DAMAGED = (pa.ArrowException, OSError, ValueError)  # ValueError: a name that is not UTF-8


def why_unreadable(path: Path, columns: Columns) -> str | None:
    """Why a file cannot be used, or None if it is whole and its columns are what they must be."""
    checks = {column.name: column for column in columns}
    try:
        found, table = _read(path, checks)
        times, read = Counter(found), table.column_names
        wrong = [name for name in checks if times[name] > 1]
        wrong = wrong or [n for n in checks if n in times and n not in read]
        wrong = wrong or [n for n in read if not _is_sound(checks[n], table[n])]
    except FileNotFoundError:
        return "no such file"
    except NotRegularError as error:
        return error.strerror
    except _TooLargeError as error:
        return str(error)
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
    """Names of all columns of a file, and a table of those among `columns`; None: of all.

    Columns of lists are left out, since a few bytes of one may stand for any number of values; and
    those of one name.
    """
    # An open file, because pyarrow takes only paths that are UTF-8. Without pre-buffering and
    # threads, since a process that ends while a thread of Arrow's pools begins is aborted.
    with open_regular(path) as stream:
        about = pq.read_metadata(stream)
        _check_size(about)
        found: list[str] = about.schema.to_arrow_schema().names
        flat = {c.path for c in map(about.schema.column, range(about.num_columns)) if _is_flat(c)}
        once = (name for name, times in Counter(found).items() if times == 1)
        wanted = [n for n in once if n in flat and (columns is None or n in columns)]
        schema = about.schema.to_arrow_schema()
        texts = [name for name in wanted if pa.types.is_string(schema.field(name).type)]
        file = _opened(stream, about, texts)
        others = {name for name in wanted if not _is_number(schema.field(name).type)} - set(texts)
        if refused := {name for name in texts if not _is_read_packed(file, name)}:
            texts = [name for name in texts if name not in refused]
            file = _opened(stream, about, texts)
        _check_texts(file, sorted(refused | others))
        table = file.read(columns=wanted, use_threads=False)
        for name in texts:
            index = table.column_names.index(name)
            table = table.set_column(index, name, _decoded(table.column(index)))
        return found, table


def _is_flat(column: pq.ColumnSchema) -> bool:
    return bool(column.max_repetition_level == 0)


def _opened(stream: IO[bytes], about: pq.FileMetaData, texts: list[str]) -> pq.ParquetFile:
    """A file, of whose `texts` each value is read once."""
    return pq.ParquetFile(
        stream,
        metadata=about,
        read_dictionary=texts,
        page_checksum_verification=True,
        pre_buffer=False,
    )


def _is_read_packed(file: pq.ParquetFile, name: str) -> bool:
    """Whether a column of text can be read with each value once; not from DELTA_BYTE_ARRAY.

    The footer would tell, but `RowGroupMetaData.column` ends the process if what it finds there is
    damaged (pyarrow 26), where reading raises.
    """
    try:
        next(file.iter_batches(1, columns=[name], use_threads=False), None)
    except OSError:
        return False
    return True


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind))  # times, yes and no, too


def _check_texts(file: pq.ParquetFile, names: Collection[str]) -> None:
    """Read columns in pieces: in each text some bytes may stand for all those of the one before."""
    if names:
        for piece in file.iter_batches(_TEXTS_AT_ONCE, columns=list(names), use_threads=False):
            for column in piece.columns:
                if not pa.types.is_dictionary(column.type):  # which has each value once
                    _check_lengths(column, file.metadata.num_rows)


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    for chunk in column.chunks:
        _check_lengths(chunk.dictionary, len(column))
    return column.cast(column.type.value_type)


def _check_lengths(texts: pa.Array, rows: int) -> None:
    if not _has_length(texts.type):
        return
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest * rows > MOST_BYTES:
        raise _TooLargeError(f"texts of {longest:,} bytes in {rows:,} rows")


def _has_length(kind: pa.DataType) -> bool:
    of_texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(of_texts or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _check_size(about: pq.FileMetaData) -> None:
    """Refuse a file before it is read that says of itself that it takes too much memory."""
    rows, columns = about.num_rows, about.num_columns
    if rows * columns > MOST_VALUES:
        raise _TooLargeError(f"{rows:,} rows of {columns:,} columns")
    groups = (about.row_group(number) for number in range(about.num_row_groups))
    stored = sum(max(0, group.total_byte_size) for group in groups)
    if stored > MOST_BYTES:
        raise _TooLargeError(f"{stored:,} bytes when unpacked")


class _TooLargeError(ValueError):
    """A file that no run wrote."""

    def __init__(self, found: str) -> None:
        super().__init__(f"{found}: more than any run writes")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
