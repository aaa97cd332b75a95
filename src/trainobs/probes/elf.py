"""Where a function of a shared library lies in its file; read without a tool that may be missing.

Source: System V ABI, chapters 4 and 5 (ELF-64), little-endian, as all machines of trainobs are.
"""

from __future__ import annotations

import mmap
import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_IDENT = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_HEADER = struct.Struct("<32xQQ6xHHHH")  # e_phoff, e_shoff, sizes and counts of both tables
_SECTION = struct.Struct("<4xI16xQQI20x")  # sh_type, sh_offset, sh_size, sh_link
_SEGMENT = struct.Struct("<I4xQQ8xQ16x")  # p_type, p_offset, p_vaddr, p_filesz
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2")]
    + [("value", "<u8"), ("size", "<u8")]
)
_MOST_BYTES = 1 << 30
"""Of its names or symbols; those of libtorch take 5 MB. A sparse file costs nobody anything."""

_DYNSYM, _LOAD, _FUNCTION = 11, 1, 2  # SHT_DYNSYM, PT_LOAD, STT_FUNC


class ElfError(Exception):
    """A file is no library, or a damaged one."""


class _Part(NamedTuple):
    """A part of the file."""

    offset: int
    size: int


class Library:
    """The functions that a shared library exports.

    Args:
        path: of the file; it is not kept open.

    Raises:
        OSError: it cannot be read.
        ElfError: it is no shared library of 64 bits, or damaged.
    """

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            try:
                self._file = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            except ValueError as error:
                raise ElfError("the file is empty") from error
        try:
            self._read()
        except (struct.error, ValueError, IndexError, OverflowError) as error:
            self.close()
            raise ElfError(f"the file is damaged: {error}") from error
        except ElfError:
            self.close()
            raise

    def offset_of(self, name: str) -> int | None:
        """Offset in the file of the one function whose name, as compiled, begins so.

        Names of C++ hold the types of the arguments behind the name proper, and these differ from
        version to version. None if there is no such function, or several.
        """
        places = self._names_beginning(name.encode())
        found = self._symbols[np.isin(self._symbols["name"], places)]
        found = found[(found["info"] & 15 == _FUNCTION) & (found["section"] != 0)]
        addresses = set(found["value"].tolist())
        return self._offset_at(addresses.pop()) if len(addresses) == 1 else None

    def close(self) -> None:
        """Let go of the file. May be called twice."""
        self._symbols = np.empty(0, _SYMBOL)
        self._file.close()

    def _read(self) -> None:
        if self._file[: len(_IDENT)] != _IDENT:
            raise ElfError("the file is no ELF file of 64 bits")
        segments, sections, *counts = _HEADER.unpack_from(self._file, 0)
        segment_size, segment_count, section_size, section_count = counts
        self._segments = [
            _SEGMENT.unpack_from(self._file, segments + i * segment_size)
            for i in range(segment_count)
        ]
        parts = [
            _SECTION.unpack_from(self._file, sections + i * section_size)
            for i in range(section_count)
        ]
        table = next((part for part in parts if part[0] == _DYNSYM), None)
        if table is None:
            raise ElfError("the file exports nothing")
        _, _, _, names_index = table
        self._names = self._part(*parts[names_index][1:3])
        self._symbols = self._table(self._part(*table[1:3]))

    def _part(self, offset: int, size: int) -> _Part:
        if offset + size > len(self._file):
            raise ElfError("the file ends too soon")
        if size > _MOST_BYTES:
            raise ElfError("it claims to have more names than a library has")
        return _Part(offset, size)

    def _table(self, part: _Part) -> npt.NDArray[np.void]:
        count = part.size // _SYMBOL.itemsize
        return np.frombuffer(self._file[part.offset : part.offset + part.size], _SYMBOL, count)

    def _names_beginning(self, name: bytes) -> list[int]:
        """Places in the table of names where one begins so."""
        found, (begin, size) = [], self._names
        at = self._file.find(b"\0" + name, begin, begin + size)
        while at >= 0:
            found.append(at + 1 - begin)
            at = self._file.find(b"\0" + name, at + 1, begin + size)
        return found

    def _offset_at(self, address: int) -> int | None:
        for kind, offset, begin, size in self._segments:
            if kind == _LOAD and begin <= address < begin + size:
                return int(address - begin + offset)
        return None
