"""Parquet files of tables, without pandas.

`pyarrow.array` looks whether it was given something of pandas', and imports pandas for that where
it is installed: 0.3 s and 38 MiB, in the middle of a training. So columns are made from buffers.
`pyarrow.parquet` imports the clients of S3, GCS, Azure and HDFS: 4 MiB. So what it wraps is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainobs.runlog.columns import Column
from trainobs.runlog.table import Table

_ENCODINGS = {"f": "BYTE_STREAM_SPLIT", "S": "DELTA_BYTE_ARRAY", "i": "DELTA_BINARY_PACKED"}
"""By kind of the numbers in a column."""

_type = lru_cache(pa.from_numpy_dtype)


def encode(table: Table) -> bytes:
    """`table` as a Parquet file; every number is kept exactly."""
    arrays = pa.table({c.name: _array_of(c, table.values[c.name]) for c in table.columns})
    plain = [column for column in table.columns if column.words is None]
    # To begin zstd takes longer than to compress what most columns hold, and gains 1 % of them.
    kinds = {column.name: np.dtype(column.dtype).kind for column in plain}
    stream = pa.BufferOutputStream()
    writer = _writer(
        stream,
        arrays.schema,
        version="2.6",
        compression={name: "zstd" if kind in "fS" else "snappy" for name, kind in kinds.items()},
        use_dictionary=[column.name for column in table.columns if column.words is not None],
        column_encoding={name: _ENCODINGS[kind] for name, kind in kinds.items() if kind != "b"},
        write_page_checksum=True,
        store_schema=False,  # 4.6 bytes a step for what only Arrow reads: the names as dictionaries
        # Readers skip parts by step; bounds of the other columns would only cost bytes.
        write_statistics=["step"] if "step" in kinds else False,
    )
    writer.write_table(arrays)
    writer.close()
    return bytes(stream.getvalue())


def _writer(stream: pa.BufferOutputStream, schema: pa.Schema, **options: Any) -> Any:
    """What `pyarrow.parquet.ParquetWriter` wraps (tried: pyarrow 15 and 26), or that itself."""
    try:
        from pyarrow._parquet import ParquetWriter

        return ParquetWriter(stream, schema, writer_engine_version="V2", **options)
    except (AttributeError, ImportError, TypeError, ValueError):  # it is not the one that was tried
        from pyarrow.parquet import ParquetWriter

        return ParquetWriter(stream, schema, **options)


def _array_of(column: Column, values: npt.NDArray[Any]) -> pa.Array:
    if column.words is not None:
        indices = _numbers(values.astype(column.dtype))
        return pa.DictionaryArray.from_arrays(indices, _texts(column.words))
    if values.dtype.kind == "S":
        return _texts([value.decode(errors="replace") or None for value in values.tolist()])
    if values.dtype.kind == "b":
        return _booleans(values)
    if values.dtype.kind != "f":
        valid = None if column.missing is None else values >= column.least
        return _numbers(values.astype(column.dtype, copy=False), valid)
    kind, valid = np.dtype(column.dtype), np.isfinite(values)
    known = np.count_nonzero(valid)
    if not known:
        return pa.nulls(len(values), _type(kind))
    if kind.kind == "i":
        values = np.rint(values if known == len(values) else np.where(valid, values, 0.0))
    return _numbers(values.astype(kind), None if known == len(values) else valid)


def _numbers(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """A column of the numbers of `values` (n,), null where not `valid` (n,)."""
    plain = np.ascontiguousarray(values)
    bits = None if valid is None else _validity(valid)
    return pa.Array.from_buffers(_type(plain.dtype), len(plain), [bits, pa.py_buffer(plain)])


def _booleans(values: npt.NDArray[np.bool_]) -> pa.Array:
    """A column of yes and no."""
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])


def _texts(values: Sequence[str | None]) -> pa.Array:
    """A column of strings, null for None."""
    encoded = [(value or "").encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    valid = _validity(np.array([value is not None for value in values], bool))
    buffers = [valid, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def _validity(valid: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
