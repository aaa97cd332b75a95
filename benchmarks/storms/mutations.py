"""Changes of a run log that nobody who writes one would make, drawn from a seed."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

JSON_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**30, 10**400),
    *(0.0, -0.5, 1e308, -1e308, 1e-320, float("nan"), float("inf"), float("-inf")),
    *("", "x", "\ud800", "\x1b[2J", "\u202ex", "a\nb", "![i](http://127.0.0.1/x)", "<script>"),
    *("1", "0", "ok", "x" * 100_000, [], {}, [None], [[]], [{}], {"": None}, {"a": {"b": [1]}}),
)

NUMBERS: tuple[float, ...] = (
    *(0, 1, -1, -2, 127, 2**31, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), 0.5, 1e-300),
    *(1e18, 9.3e18, 1e300, -1e300, float("nan"), float("inf"), float("-inf")),
)

_TYPES = (
    *(pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64(), pa.float16(), pa.float32()),
    *(pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.null()),
    *(pa.timestamp("ns"), pa.date32(), pa.duration("ms"), pa.decimal128(38, 2)),
    *(pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.dictionary(pa.int32(), pa.string())),
)


def mutate(run_dir: Path, draw: random.Random) -> list[str]:
    """Change one to three things of a run log in place, and say what."""
    done = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        try:
            done.append(draw.choice(_MUTATIONS)(run_dir, draw))
        except OSError as error:  # the change before this one has left nothing to change
            done.append(str(error))
    return done


def _bytes(run_dir: Path, draw: random.Random) -> str:
    """Some bytes of any file: flipped, cut off, put in, doubled."""
    file = _file(run_dir, draw, "*")
    data = bytearray(file.read_bytes())
    at, end = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
    how = draw.choice(("flip", "flip", "cut", "zero", "insert", "double", "remove", "empty"))
    if how == "flip":
        for _ in range(draw.choice((1, 2, 8)) if data else 0):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif how == "cut":
        del data[at:]
    elif how == "zero":
        data[at:end] = bytes(end - at)
    elif how == "insert":
        data[at:at] = draw.randbytes(draw.choice((1, 4, 1000)))
    elif how == "double":
        data += bytes(data)
    elif how == "remove":
        del data[at:end]
    else:
        data.clear()
    file.write_bytes(data)
    return f"{how} bytes of {file.name}"


def _column(run_dir: Path, draw: random.Random) -> str:
    """A column of a table: its numbers, its type, its place, whether it is there."""
    file = _file(run_dir, draw, "*.parquet")
    table = _table(file)
    if table is None or not table.num_columns:
        return _bytes(run_dir, draw)
    index = draw.randrange(table.num_columns)
    name, column = table.column_names[index], table.column(index)
    how = draw.choice(("drop", "twice", "type", "null", "values", "values", "values", "rename"))
    if how == "drop":
        table = table.remove_column(index)
    elif how == "twice":
        table = table.append_column(name, column)
    elif how == "rename":
        table = table.rename_columns([c if c != name else "x\u202e" for c in table.column_names])
    elif how == "null":
        table = table.set_column(index, name, pa.nulls(len(table), _plain(column.type)))
    elif how == "type":
        table = table.set_column(index, name, _as(column, draw.choice(_TYPES)))
    else:
        table = table.set_column(index, name, _with_numbers(column, draw))
    _store(table, file, draw)
    return f"{how} of {name} in {file.name}"


def _rows(run_dir: Path, draw: random.Random) -> str:
    """The rows of a table: none, one, doubled, in another order, or a great many."""
    file = _file(run_dir, draw, "*.parquet")
    table = _table(file)
    if table is None:
        return _bytes(run_dir, draw)
    how = draw.choice(("none", "one", "double", "reverse", "shuffle", "many", "columns", "part"))
    if how == "none":
        table = table.slice(0, 0)
    elif how == "one":
        table = table.slice(0, 1)
    elif how == "double":
        table = pa.concat_tables([table, table])
    elif how == "reverse":
        table = table.take(pa.array(range(len(table))[::-1], pa.int64()))
    elif how == "shuffle":
        table = table.take(pa.array(draw.sample(range(len(table)), len(table)), pa.int64()))
    elif how == "many" and len(table):
        table = table.take(pa.array(np.zeros(draw.choice(_MANY), np.int64)))
    elif how == "columns":
        for number in range(draw.choice((1, 2000))):
            table = table.append_column(f"io/new_{number}", pa.nulls(len(table)))
    else:  # a part of the wrong number, with what another part holds already
        kind = file.stem.partition("-")[0]
        file = file.with_name(f"{kind}-{draw.choice(('00001', '7', '99999999999999999'))}.parquet")
    _store(table, file, draw)
    return f"{how} rows of {file.name}"


_MANY = (10_000, 90_000, 1_000_000)


def _field(run_dir: Path, draw: random.Random) -> str:
    """A field of `run.json`: of another type, of another number, gone, or new."""
    file = _file(run_dir, draw, "*.json")
    try:
        document = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return _bytes(run_dir, draw)
    places = list(_places(document))
    if not places:
        return _bytes(run_dir, draw)
    outer, key, name = draw.choice(places)
    how = draw.choice(("replace", "replace", "replace", "remove", "add", "nest"))
    if how == "replace":
        outer[key] = draw.choice(JSON_VALUES)
    elif how == "remove":
        del outer[key]
    elif how == "nest":
        for _ in range(draw.choice((1, 30))):
            outer[key] = draw.choice(([outer[key]], {"a": outer[key]}))
    elif isinstance(outer, dict):
        outer[draw.choice(("x", "\ud800", "", "1", "\x1b"))] = draw.choice(JSON_VALUES)
    else:
        outer.append(draw.choice(JSON_VALUES))
    file.write_text(json.dumps(document))
    return f"{how} of {name} in {file.name}: {str(outer)[:60]!r}"


def _kind(run_dir: Path, draw: random.Random) -> str:
    """Something that is no file in the place of a file, or a directory that does not belong."""
    file = _file(run_dir, draw, "*")
    how = draw.choice(("fifo", "directory", "loop", "dangling", "zero", "socket", "gone", "rank"))
    if how == "rank":
        name = draw.choice(("rank=7", "rank=007", "rank=99999999999999999999", "rank=", "rank=x"))
        (run_dir / name).mkdir(exist_ok=True)
        return f"a directory {name}"
    file.unlink()
    if how == "fifo":
        os.mkfifo(file)
    elif how == "directory":
        file.mkdir()
    elif how in ("loop", "dangling", "zero"):
        target = {"loop": file, "dangling": "nowhere", "zero": "/dev/zero"}[how]
        file.symlink_to(target)
    elif how == "socket":
        _socket(file)
    return f"{how} in the place of {file.name}"


_MUTATIONS: tuple[Callable[[Path, random.Random], str], ...] = (
    *(_bytes, _bytes, _column, _column, _column, _rows, _field, _field, _field, _kind),
)


def _socket(file: Path) -> None:
    """At `file`, whose path may be longer than what a socket's address may hold."""
    folder = os.open(file.parent, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{folder}/{file.name}")
    finally:
        os.close(folder)


def _file(run_dir: Path, draw: random.Random, pattern: str) -> Path:
    """A regular file of the run; each kind has the same chance, however many parts it has."""
    files = [path for path in run_dir.rglob(pattern) if path.is_file() and not path.is_symlink()]
    kinds = sorted({path.name.partition("-")[0] for path in files})
    if not kinds:
        raise FileNotFoundError(f"no file {pattern}")
    kind = draw.choice(kinds)
    return draw.choice(sorted(path for path in files if path.name.partition("-")[0] == kind))


def _table(file: Path) -> pa.Table | None:
    try:
        with file.open("rb") as stream:
            return pq.ParquetFile(stream).read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError):
        return None


def _store(table: pa.Table, file: Path, draw: random.Random) -> None:
    try:
        pq.write_table(
            table,
            file,
            compression=draw.choice(("zstd", "zstd", "none", "snappy")),
            row_group_size=draw.choice((None, None, 3)) if len(table) < 1000 else None,
        )
    except (pa.ArrowException, ValueError):
        file.write_bytes(b"PAR1")


def _as(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """The column as another type, or that type's nulls where it cannot be."""
    try:
        return pc.cast(column.cast(_plain(column.type)), kind, safe=False)
    except (pa.ArrowException, ValueError):
        return pa.nulls(len(column), kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _with_numbers(column: pa.ChunkedArray, draw: random.Random) -> pa.Array:
    """The column with some values, or all, replaced by extreme ones."""
    if not len(column):
        return column
    values = column.to_pylist()
    if any(isinstance(value, str) for value in values):
        for _ in range(draw.choice((1, 3))):
            values[draw.randrange(len(values))] = draw.choice(("", "x\x00", "\u202e", "read", None))
        return pa.array(values, pa.string())
    number = draw.choice(NUMBERS)
    rows: Sequence[int] = range(len(values))
    for row in draw.choice((rows, [draw.randrange(len(values))], rows[::2])):
        values[row] = number
    for kind in (column.type, pa.int64(), pa.float64()):
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            continue
    return pa.array([float("nan") if value is None else float(value) for value in values])


def _places(value: Any, name: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Every field of a document: what holds it, its key, and its name."""
    items = value.items() if isinstance(value, dict) else ()
    pairs = enumerate(value) if isinstance(value, list) else items
    for key, inner in list(pairs):
        yield value, key, f"{name}.{key}"
        yield from _places(inner, f"{name}.{key}")
