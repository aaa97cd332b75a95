"""Parquet files that lie about the sizes of their pages.

What a page takes is in its own header, whatever the footer says: 64 kB of one may unpack to 2 GB,
and pyarrow believes it. Here the headers are read before pyarrow gets the bytes. They are in
Thrift's compact protocol, of which only what a page has is read.
"""

from __future__ import annotations

import os
from typing import BinaryIO, Final

_UNPACKED, _PACKED = 2, 3
"""Fields of a page's header: bytes when unpacked, and in the file."""

_INT32, _BYTES, _STRUCT = 5, 8, 12
_OTHER_NUMBERS = (4, 6)
_SIZES = {1: 0, 2: 0, 3: 1, 7: 8}
"""Other types that a page may have -> bytes that they take: yes, no, a byte, a float."""

_FIELDS = 64
"""Numbers of fields are below: a page has 8."""

_DEEPEST = 4
"""Structs within each other; a header with bounds of values has two."""

Fields = dict[int, int | None]
"""Field -> its number; None for what is none."""


class TooLargeError(ValueError):
    """A file that no run wrote."""

    def __init__(self, found: str) -> None:
        super().__init__(f"{found}: more than any run writes")


class CheckedFile:
    """A Parquet file for `pyarrow`, which is to read each piece of a column in one call.

    Args:
        file: open for reading.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file: Final = file
        self._size = os.fstat(file.fileno()).st_size
        self._left: int | None = None

    def bound(self, most_bytes: int) -> None:
        """From now on pages are read, which together unpack to no more than this."""
        self._left = most_bytes

    def read(self, size: int = -1) -> bytes:
        """The next bytes, no more than there are whatever the footer says.

        Raises:
            TooLargeError: they are pages that take too much.
            ValueError: they are no pages.
        """
        begin = self._file.tell()
        left = self._size - begin
        data = self._file.read(left if size < 0 else max(0, min(size, left)))
        if begin and self._left is not None:  # at 0 is no page: so begin columns without rows
            self._left = _left(data, self._left)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As of any file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """As of any file."""
        return self._file.tell()

    @property
    def closed(self) -> bool:
        """As of any file."""
        return self._file.closed


def _left(data: bytes, most_bytes: int) -> int:
    """What the pages in `data` leave of `most_bytes`."""
    at = 0
    while at < len(data):
        try:
            header, at = _struct(data, at, _DEEPEST)
        except IndexError:
            raise ValueError(_WRONG) from None
        unpacked, packed = header.get(_UNPACKED), header.get(_PACKED)
        if unpacked is None or packed is None or min(unpacked, packed) < 0:
            raise ValueError(_WRONG)
        most_bytes -= unpacked
        if most_bytes < 0:
            raise TooLargeError(f"a page of {unpacked:,} bytes when unpacked")
        at += packed
    return most_bytes


_WRONG = "a page has no header that can be read"


def _struct(data: bytes, at: int, depth: int) -> tuple[Fields, int]:
    """The numbers in a struct, and where it ends.

    Raises:
        ValueError: it has a field twice, or what no header of a page has.
        IndexError: it does not end.
    """
    found: Fields = {}
    field = 0
    while byte := data[at]:
        kind, step = byte & 15, byte >> 4
        field, at = field + step, at + 1
        if not step or field in found or field >= _FIELDS:
            raise ValueError(_WRONG)
        found[field] = None
        if kind == _INT32 or kind in _OTHER_NUMBERS:
            value, at = _varint(data, at)
            if kind == _INT32 and value >> 32:  # Arrow cuts off what is more
                raise ValueError(_WRONG)
            found[field] = (value >> 1) ^ -(value & 1)
        elif kind == _STRUCT and depth:
            _, at = _struct(data, at, depth - 1)
        elif kind == _BYTES:
            length, at = _varint(data, at)
            at += length
        elif kind in _SIZES:
            at += _SIZES[kind]
        else:
            raise ValueError(_WRONG)
    return found, at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at]
    if value < 128:
        return value, at + 1
    value &= 127
    for shift in range(7, 64, 7):
        at += 1
        byte = data[at]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at + 1
    raise ValueError(_WRONG)
