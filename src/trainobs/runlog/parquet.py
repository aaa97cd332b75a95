"""Reading Parquet files that may be cut short, foreign or damaged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainobs.core.errors import RunLogError
from trainobs.core.files import NotRegularError, open_regular
from trainobs.runlog.columns import BOUND, Column, Columns
from trainobs.runlog.pages import CheckedFile, TooLargeError

MOST_VALUES = 1 << 24
"""Numbers in a file: 134 MB in memory. The largest parts are of steps that a disk refused for long:
8192 of them, and up to 256 rows of `kernel` for each."""

MOST_BYTES = 8 * MOST_VALUES
"""Of a file when it is unpacked."""

_TEXTS_AT_ONCE = 64

_DAMAGED = (pa.ArrowException, OSError, ValueError)  # ValueError: a name that is not UTF-8


def why_unreadable(path: Path, columns: Columns) -> str | None:
    """Why a file cannot be used, or None if it is whole and these columns are what they must be.

    Of columns that may be missing see `wrong_columns`.
    """
    try:
        found, table = _read(path, {column.name for column in columns}, packed=True)
    except FileNotFoundError:
        return "no such file"
    except (NotRegularError, PermissionError) as error:
        return str(error.strerror)
    except TooLargeError as error:
        return str(error)
    except _DAMAGED as error:
        return f"not a whole Parquet file ({_first_line(error)})"
    missing = [column.name for column in columns if column.name not in found]
    if missing:
        return f"without the columns {', '.join(missing)}"
    wrong = _wrong(columns, found, table)
    return f"with unusable values in {', '.join(wrong)}" if wrong else None


def wrong_columns(path: Path, columns: Columns) -> list[str]:
    """Those of some columns that are there and cannot be used, of a file that can be."""
    try:
        found, table = _read(path, {column.name for column in columns}, packed=True)
    except _DAMAGED:
        half = len(columns) // 2
        if not half:
            return [column.name for column in columns]
        return [*wrong_columns(path, columns[:half]), *wrong_columns(path, columns[half:])]
    return _wrong(columns, found, table)


class Values(NamedTuple):
    """What was read of some columns.

    Attributes:
        rows: of the file.
        of: name -> values in memory, see `Column`; not of what is not there, or cannot be used, nor
            of texts, which are checked alone.
        wrong: columns that cannot be used.
    """

    rows: int
    of: dict[str, npt.NDArray[Any]]
    wrong: list[str]


def read_values(path: Path, columns: Columns) -> Values:
    """Some columns of a file, checked as they are read.

    Raises:
        RunLogError: as of `read_columns`.
    """
    try:
        found, table = _read(path, {column.name for column in columns}, packed=True)
        wrong = _wrong(columns, found, table)
    except _DAMAGED:
        wrong = wrong_columns(path, tuple(column for column in columns if column.is_new))
        others = {column.name for column in columns} - set(wrong)
        found, table = _checked(path, others, packed=True)
        wrong += _wrong([column for column in columns if column.name in others], found, table)
    if lost := [column.name for column in columns if column.name in wrong and not column.is_new]:
        raise _lost(path, f"with unusable values in {', '.join(lost)}")
    read = dict(zip(table.column_names, table.columns, strict=True))
    if lost := [column.name for column in columns if not (column.is_new or column.name in read)]:
        raise _lost(path, f"without the columns {', '.join(lost)}")
    sound = (one for one in _numbers(columns) if one.name in read and one.name not in wrong)
    return Values(len(table), {one.name: values_of(one, read[one.name]) for one in sound}, wrong)


def _numbers(columns: Columns) -> Iterator[Column]:
    return (column for column in columns if np.dtype(column.dtype).kind != "S")


def values_or_reason(path: Path, columns: Columns) -> Values | str:
    """The same of a file that nobody looked at yet, or why it cannot be used.

    Those of `columns` that are not new must be there.
    """
    needed = tuple(column for column in columns if not column.is_new)
    with suppress(RunLogError):
        return read_values(path, columns)
    return why_unreadable(path, needed) or "it changed while it was read"


def _wrong(columns: Iterable[Column], found: Collection[str], table: pa.Table) -> list[str]:
    """Columns of a file that are there twice, were not read, or have unusable values."""
    read = dict(zip(table.column_names, table.columns, strict=True))
    return [
        column.name
        for column in columns
        if (column.name not in read and column.name in found)
        or (column.name in read and not _is_sound(column, read[column.name]))
    ]


def read_columns(path: Path, columns: Iterable[str]) -> pa.Table:
    """Some columns of a file; one that an older version did not write yet is left out.

    Raises:
        RunLogError: the file was damaged after it was found readable, or is gone.
    """
    return _checked(path, set(columns))[1]


def footer(path: Path) -> tuple[list[str], int]:
    """Names of all columns of a file, and its rows.

    Raises:
        RunLogError: as of `read_columns`.
    """
    names, rows = _checked(path, ())
    return names, len(rows)


def read_whole(path: Path) -> pa.Table:
    """All columns of a file.

    Raises:
        RunLogError: as of `read_columns`.
    """
    return _checked(path, None)[1]


def _checked(
    path: Path, columns: Collection[str] | None, packed: bool = False
) -> tuple[list[str], pa.Table]:
    try:
        return _read(path, columns, packed)
    except _DAMAGED as error:
        raise _lost(path, _first_line(error)) from error


def _lost(path: Path, why: str) -> RunLogError:
    return RunLogError(
        failed="A part of the run log cannot be read.",
        found=f"{path}: {why}",
        do="restore that file, or move it away: the rest of the run is readable without it",
    )


def values_of(column: Column, found: pa.ChunkedArray) -> npt.NDArray[Any]:
    """The values of a column as they are in memory: see `Column`."""
    parts = [_values_of(column, chunk) for chunk in found.chunks]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])


def _values_of(column: Column, chunk: pa.Array) -> npt.NDArray[Any]:
    if column.words is not None:
        return _numbers_of(column.words, chunk)
    if pa.types.is_boolean(chunk.type):
        return _bits(chunk, 1)
    missing = 0 if column.missing is None else column.missing
    kind = np.dtype(type(missing))
    values = _plain(chunk).astype(kind, copy=False)
    if chunk.null_count:
        values = np.where(_bits(chunk, 0), values, kind.type(missing))
    return values


def _bits(chunk: pa.Array, number: int) -> npt.NDArray[np.bool_]:
    """A buffer of bits of a piece of a column: 0 tells which are no nulls, 1 has yes and no.

    `fill_null` and `to_numpy` of Arrow would import pandas, which takes longer than a report.
    """
    buffer = chunk.buffers()[number]
    if buffer is None or not len(chunk):
        return np.ones(len(chunk), np.bool_)
    bits = np.frombuffer(buffer, np.uint8)
    end = chunk.offset + len(chunk)
    return np.unpackbits(bits, count=end, bitorder="little")[chunk.offset :].view(np.bool_)


def _plain(chunk: pa.Array) -> npt.NDArray[Any]:
    """The numbers of a piece of a column, anything where they are null; without a copy."""
    of = chunk.type  # whose `to_pandas_dtype` imports pandas, where pyarrow is old
    letter = "f" if pa.types.is_floating(of) else "i" if pa.types.is_signed_integer(of) else "u"
    kind = np.dtype(f"{letter}{of.bit_width // 8}")
    buffer = chunk.buffers()[1]
    if buffer is None:
        return np.zeros(len(chunk), kind)
    return np.frombuffer(buffer, kind, len(chunk), chunk.offset * kind.itemsize)


def _numbers_of(words: Sequence[str], chunk: pa.Array) -> npt.NDArray[np.int64]:
    if pa.types.is_dictionary(chunk.type):
        number = {word: index for index, word in enumerate(words)}
        numbers = [number.get(word, -1) for word in chunk.dictionary.to_pylist()]
        return np.take(np.array(numbers, np.int64), _plain(chunk.indices))
    found = pc.index_in(chunk.cast(pa.string()), value_set=pa.array(words, pa.string()))
    return np.where(_bits(found, 0), _plain(found), -1).astype(np.int64)


def _is_sound(column: Column, found: pa.ChunkedArray) -> bool:
    """Whether a column has the type, and only values, that can be worked with."""
    kind = found.type
    if column.words is not None:
        return _are_among(column.words, found)
    if np.dtype(column.dtype).kind == "S":
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
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
    return all(_is_within(column, _known(chunk)) for chunk in found.chunks)


def _is_within(column: Column, values: npt.NDArray[Any]) -> bool:
    """Whether all numbers that are not NaN are."""
    if not len(values):
        return True
    low, high = np.fmin.reduce(values), np.fmax.reduce(values)
    return bool(low != low or (low >= column.least and high < column.below))


def _known(chunk: pa.Array) -> npt.NDArray[Any]:
    """The numbers of a piece of a column that are not null."""
    values = _plain(chunk)
    return values[_bits(chunk, 0)] if chunk.null_count else values


def _are_among(words: Collection[str], found: pa.ChunkedArray) -> bool:
    """Whether a column is one of strings that are all among `words`."""
    is_packed = pa.types.is_dictionary(found.type)
    kind = found.type.value_type if is_packed else found.type
    if found.null_count or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return False
    if is_packed:
        return all(_is_packed_among(words, chunk) for chunk in found.chunks)
    is_known = pc.is_in(found.cast(pa.string()), value_set=pa.array(words, pa.string()))
    return all(_bits(chunk, 1).all() for chunk in is_known.chunks)


def _is_packed_among(words: Collection[str], chunk: pa.Array) -> bool:
    known = np.array([word in words for word in chunk.dictionary.to_pylist()], np.bool_)
    used = _plain(chunk.indices)
    if not len(used):
        return True
    in_it = used.min() >= 0 and used.max() < len(known)
    return bool(in_it and (known.all() or known[np.unique(used)].all()))


def _read(
    path: Path, columns: Collection[str] | None, packed: bool = False
) -> tuple[list[str], pa.Table]:
    """Names of all columns of a file, and a table of those among `columns`; None: of all.

    Columns of lists are left out, since a few bytes of one may stand for any number of values; and
    those of one name. If `packed`, texts that are stored once each stay as they are.
    """
    # An open file, because pyarrow takes only paths that are UTF-8. Without pre-buffering and
    # threads, since a process that ends while a thread of Arrow's pools begins is aborted.
    with open_regular(path) as opened:
        stream = CheckedFile(opened)
        file = _opened(stream)
        _check_size(file.metadata)
        schema = file.schema_arrow
        found: list[str] = schema.names
        wanted = _wanted(schema, columns)
        texts = [name for name, kind in wanted.items() if pa.types.is_string(kind)]
        others = {n for n, kind in wanted.items() if not pa.types.is_primitive(kind)} - set(texts)
        if texts:
            file = _opened(stream, file.metadata, texts)
            refused = {name for name in texts if not _is_read_packed(file, name)}
            if refused:
                texts = [name for name in texts if name not in refused]
                file = _opened(stream, file.metadata, texts)
            others |= refused
        stream.bound(MOST_BYTES)
        _check_texts(file, sorted(others))
        stream.bound(MOST_BYTES)
        table = file.read(columns=list(wanted), use_threads=False)
        if len(table) != file.metadata.num_rows:  # where bytes are gone pyarrow may find no page
            raise ValueError(f"{len(table):,} of {file.metadata.num_rows:,} rows")
        for name in texts:
            index = table.column_names.index(name)
            table = table.set_column(index, name, _decoded(table.column(index), packed))
        return found, table


def _wanted(schema: pa.Schema, columns: Collection[str] | None) -> dict[str, pa.DataType]:
    """Type of each column that is to be read, in their order."""
    indices = map(schema.get_field_index, schema.names if columns is None else columns)
    fields = [schema.field(index) for index in sorted(set(indices) - {-1})]  # -1: none, or several
    return {field.name: field.type for field in fields if not pa.types.is_nested(field.type)}


def _opened(
    stream: CheckedFile, about: pq.FileMetaData | None = None, texts: Sequence[str] = ()
) -> pq.ParquetFile:
    """A file, of whose `texts` each value is read once; `about`, where it was opened before."""
    file = pq.ParquetFile(
        stream,
        metadata=about,
        read_dictionary=list(texts),
        page_checksum_verification=True,
        pre_buffer=False,
    )
    stream.bound(MOST_BYTES)
    return file


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


def _check_texts(file: pq.ParquetFile, names: Collection[str]) -> None:
    """Read columns in pieces: in each text some bytes may stand for all those of the one before."""
    if names:
        for piece in file.iter_batches(_TEXTS_AT_ONCE, columns=list(names), use_threads=False):
            for column in piece.columns:
                if not pa.types.is_dictionary(column.type):  # which has each value once
                    _check_lengths(column, file.metadata.num_rows)


def _decoded(column: pa.ChunkedArray, packed: bool) -> pa.ChunkedArray:
    for chunk in column.chunks:
        _check_lengths(chunk.dictionary, len(column))
    return column if packed else column.cast(column.type.value_type)


def _check_lengths(texts: pa.Array, rows: int) -> None:
    if not _has_length(texts.type):
        return
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest * rows > MOST_BYTES:
        raise TooLargeError(f"texts of {longest:,} bytes in {rows:,} rows")


def _has_length(kind: pa.DataType) -> bool:
    of_texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(of_texts or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _check_size(about: pq.FileMetaData) -> None:
    """Refuse a file before it is read that says of itself that it takes too much memory."""
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    rows = max(about.num_rows, sum(max(0, group.num_rows) for group in groups))
    if rows * about.num_columns > MOST_VALUES:
        raise TooLargeError(f"{rows:,} rows of {about.num_columns:,} columns")
    stored = sum(max(0, group.total_byte_size) for group in groups)
    if stored > MOST_BYTES:
        raise TooLargeError(f"{stored:,} bytes when unpacked")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
