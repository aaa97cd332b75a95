"""Parquet files whose pages are not what their footer says: refused before memory is taken."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainobs.runlog import parquet
from trainobs.runlog.columns import Column
from trainobs.runlog.parquet import read_whole, why_unreadable

ROWS = 12_345
LIE = 1 << 25
"""Values that a page stands for: 268 MB of them, twice what is read of a whole file."""

DATA, DICTIONARY = 0, 2
PLAIN, RLE, BY_DICTIONARY = 0, 3, 8
ONE_RUN = b"\x01"
"""Width of the indices of a page, in bits; behind it come how often, and which."""


def varint(value):
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def number(value):
    """A number after the byte of its field."""
    return varint((value << 1) ^ (value >> 63))


ROW_COUNT, MANY = (b"\x16" + number(rows) for rows in (ROWS, LIE))
"""As a footer has them."""


def header(kind, unpacked, packed, values, encoding):
    """A page's header, as Parquet's writers write it."""
    sizes = b"".join(b"\x15" + number(value) for value in (kind, unpacked, packed))
    own = b"\x15" + number(values) + b"\x15" + number(encoding)
    if kind == DATA:
        return sizes + b"\x2c" + own + (b"\x15" + number(RLE)) * 2 + b"\0\0"
    return sizes + b"\x4c" + own + b"\0\0"


def written(path, pages):
    """A file of one column, whose pages are replaced by others."""
    numbers = np.random.default_rng(0).integers(0, 2**62, ROWS)
    schema = pa.schema([pa.field("step", pa.int64(), nullable=False)])
    table = pa.table({"step": numbers}, schema=schema)
    pq.write_table(table, path, use_dictionary=False, compression="zstd")
    at = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[at : at + len(pages)] = pages
    path.write_bytes(data)


def unpacks_to_much(path):
    """A page of zeros, of which more are packed than there are rows."""
    zeros = pa.compress(bytes(8 * LIE), codec="zstd", asbytes=True)
    written(path, header(DATA, 8 * LIE, len(zeros), ROWS, PLAIN) + zeros)


def stands_for_much(path):
    """A page of one value again and again, and a group of rows that says so, unlike the file."""
    value = pa.compress(bytes(8), codec="zstd", asbytes=True)
    run = ONE_RUN + varint(LIE << 1) + b"\0"
    packed = pa.compress(run, codec="zstd", asbytes=True)
    pages = header(DICTIONARY, 8, len(value), 1, PLAIN) + value
    pages += header(DATA, len(run), len(packed), LIE, BY_DICTIONARY) + packed
    written(path, pages)
    data = path.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    of_file, of_column, of_group, rest = data[begin:-8].split(ROW_COUNT)
    footer = of_file + ROW_COUNT + of_column + MANY + of_group + MANY + rest
    path.write_bytes(data[:begin] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


@pytest.mark.parametrize(
    ("lie", "found"),
    [
        (unpacks_to_much, f"a page of {8 * LIE:,} bytes when unpacked: more than any run writes"),
        (stands_for_much, f"{LIE:,} rows of 1 columns: more than any run writes"),
    ],
)
def test_a_page_that_takes_much_is_refused_before_it_takes_it(tmp_path, lie, found):
    path = tmp_path / "part.parquet"
    lie(path)
    assert why_unreadable(path, (Column("step"),)) == found
    assert most_bytes(READ, path) < 4 * LIE
    assert most_bytes(BELIEVE, path) > 8 * LIE


def test_texts_of_which_each_stands_for_the_one_before_are_counted_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "MOST_BYTES", 1 << 20)
    path, text = tmp_path / "part.parquet", "x" * 10_000
    pq.write_table(
        pa.table({"name": [text] * 200}),
        path,
        use_dictionary=False,
        column_encoding={"name": "DELTA_BYTE_ARRAY"},
    )
    assert path.stat().st_size < 20_000
    found = why_unreadable(path, (Column("name", "S48"),))
    assert found == "texts of 10,000 bytes in 200 rows: more than any run writes"


READ = 'from trainobs.runlog.parquet import why_unreadable as read; read(path, (Column("step"),))'
BELIEVE = "from pyarrow import parquet; parquet.ParquetFile(path).read(use_threads=False)"


def most_bytes(job, path):
    """By which a job raises the memory of a process."""
    program = f"""
from contextlib import suppress
from pathlib import Path
from pyarrow import ArrowException
from trainobs.runlog.columns import Column
def most():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
path, before = Path({str(path)!r}), most()
with suppress(ArrowException, OSError):
    {job}
print(most() - before)
"""
    return int(subprocess.check_output([sys.executable, "-c", program]))


@pytest.mark.parametrize("rows", [0, ROWS])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
def test_the_pages_of_any_writer_are_read(tmp_path, version, compression, rows):
    path = tmp_path / "part.parquet"
    words = [None, "read", "write", "x" * 200]
    columns = {"step": range(ROWS), "ratio": [0.5, None, -1.5], "op": words, "on": [True, None]}
    whole = {name: [value[i % len(value)] for i in range(ROWS)] for name, value in columns.items()}
    table = pa.table(whole).slice(0, rows)
    pq.write_table(
        table, path, compression=compression, data_page_version=version, data_page_size=1000
    )
    assert read_whole(path) == table
