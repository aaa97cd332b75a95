"""From lines of Criteo's click logs to arrays: a block of lines at once, by pyarrow.

A line has 40 columns between tabs: a label (0 or 1), 13 integers and 26 categories of eight
hexadecimal digits each. Integers and categories may be missing. The Kaggle set (``train.txt``) and
the days of the Terabyte set (``day_0`` to ``day_23``) are alike. Copies that went through an editor
lack the tabs before missing categories at the end of a line; up to three of them are put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from columns import CATEGORIES, DENSE_COUNT
from numpy.typing import NDArray
from pyarrow import csv

MISSING = -1  # in Rows.categories
INTEGERS = [f"I{number}" for number in range(1, DENSE_COUNT + 1)]
COLUMNS = ["label", *INTEGERS, *CATEGORIES]
DIGITS = 8
TABS = len(COLUMNS) - 1
STRIPPED = 3  # C24 to C26 are often missing; a line that lacks more is rather a broken one

_PARSE = csv.ParseOptions(
    delimiter="\t", quote_char=False, double_quote=False, ignore_empty_lines=False
)
_CONVERT = csv.ConvertOptions(
    column_types={
        **dict.fromkeys(["label", *INTEGERS], pa.int64()),
        **dict.fromkeys(CATEGORIES, pa.binary()),
    },
    null_values=[""],
    strings_can_be_null=True,
)
_NO_DIGIT = 255
_VALUE_OF_DIGIT = np.full(256, _NO_DIGIT, dtype=np.uint8)
for _digit in b"0123456789abcdefABCDEF":
    _VALUE_OF_DIGIT[_digit] = int(chr(_digit), 16)


class Rows(NamedTuple):
    """N lines as arrays."""

    labels: NDArray[np.float32]  # (N,): 0 or 1
    dense: NDArray[np.float32]  # (N, 13): log(1 + integer), 0 where it is missing or negative
    categories: NDArray[np.int64]  # (26, N): the 32-bit value, or MISSING


class Malformed(NamedTuple):
    """A line that is none of Criteo's."""

    index: int  # among the lines given
    reason: str


def parse(lines: Sequence[bytes]) -> tuple[Rows, list[Malformed]]:
    """Return what the good lines say, in their order, and which others there are."""
    try:
        return _parse_all(lines), []
    except ValueError:  # pyarrow's ArrowInvalid is one
        pass
    rows, bad = _parse_some(lines)
    return rows, [Malformed(index, _reason(lines[index])) for index in sorted(bad)]


def _parse_some(lines: Sequence[bytes]) -> tuple[Rows, list[int]]:
    """Return the good lines' rows and the others' indices: divide and conquer.

    So the one definition of a good line is `_parse_all`, and a few bad ones cost little.
    """
    lacking = {index: TABS - lines[index].count(b"\t") for index in range(len(lines))}
    bad = [index for index, tabs in lacking.items() if not 0 <= tabs <= STRIPPED]
    whole = {
        index: lines[index].rstrip(b"\r\n") + b"\t" * tabs + b"\n"
        for index, tabs in lacking.items()
        if 0 <= tabs <= STRIPPED
    }
    pieces, halves = [_NO_ROWS], [list(whole)]
    while halves:
        part = halves.pop()
        try:
            pieces.append(_parse_all([whole[index] for index in part]))
        except ValueError:
            if len(part) == 1:
                bad += part
            else:
                middle = len(part) // 2
                halves += [part[middle:], part[:middle]]  # the first half is next
    return join(pieces), bad


def join(pieces: Sequence[Rows]) -> Rows:
    """Return the rows of all pieces in their order."""
    if len(pieces) == 1:
        return pieces[0]
    labels, dense, categories = zip(*pieces, strict=True)
    return Rows(np.concatenate(labels), np.concatenate(dense), np.concatenate(categories, axis=1))


def _parse_all(lines: Sequence[bytes]) -> Rows:
    """Return what the lines say; ValueError if one of them is malformed."""
    if not lines:
        return _NO_ROWS
    text = b"".join(lines)
    read = csv.ReadOptions(use_threads=False, column_names=COLUMNS, block_size=len(text) + 1)
    table = csv.read_csv(pa.BufferReader(text), read, _PARSE, _CONVERT).combine_chunks()
    if table.num_rows != len(lines):  # a carriage return in the middle ends a line for pyarrow
        raise ValueError("carriage return")
    labels = table.column("label")
    if labels.null_count:
        raise ValueError("no label")
    label_values = labels.to_numpy()
    if not ((label_values == 0) | (label_values == 1)).all():
        raise ValueError("label")
    dense = np.empty((DENSE_COUNT, len(lines)), dtype=np.float32)
    for row, name in zip(dense, INTEGERS, strict=True):
        row[:] = table.column(name).fill_null(0).to_numpy()
    np.log1p(dense.clip(min=0, out=dense), out=dense)
    categories = np.empty((len(CATEGORIES), len(lines)), dtype=np.int64)
    for row, name in zip(categories, CATEGORIES, strict=True):
        _read_category(table.column(name).chunk(0), row)
    return Rows(label_values.astype(np.float32), dense.T, categories)


def _read_category(column: pa.BinaryArray, values: NDArray[np.int64]) -> None:
    """Write the value of each cell; ValueError if a cell is not eight hexadecimal digits."""
    _, offset_buffer, text = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[column.offset :][: len(column) + 1]
    lengths = np.diff(offsets)
    there = lengths == DIGITS
    if column.null_count + np.count_nonzero(there) != len(column):
        raise ValueError("digits")
    values[:] = MISSING
    if not there.any():
        return
    digits = _VALUE_OF_DIGIT[np.frombuffer(text, np.uint8)[offsets[0] : offsets[-1]]]
    if (digits == _NO_DIGIT).any():
        raise ValueError("digits")
    octets = digits[0::2] << 4 | digits[1::2]
    values[there] = octets.view(">u4")


def _reason(line: bytes) -> str:
    """Say what is wrong with a malformed line."""
    cells = line.rstrip(b"\r\n").split(b"\t")
    if not TABS - STRIPPED <= len(cells) - 1 <= TABS:
        return f"{len(cells)} columns, not {len(COLUMNS)}"
    for name, cell in zip(COLUMNS, cells, strict=False):
        one_cell = [b"0", *[b""] * TABS]
        one_cell[COLUMNS.index(name)] = cell
        try:
            _parse_all([b"\t".join(one_cell)])
        except ValueError:
            shown = cell[:40].decode("utf-8", "backslashreplace")
            return f"{name} is {shown!r}"
    return "a carriage return in the line"


_NO_ROWS = Rows(
    np.empty(0, np.float32),
    np.empty((0, DENSE_COUNT), np.float32),
    np.empty((len(CATEGORIES), 0), np.int64),
)
