"""Functions of shared libraries, found in their files."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import random
import struct
from pathlib import Path

import pytest

from trainobs.probes.elf import ElfError, Library


def mapped(name: str) -> tuple[str, int, int]:
    """A library of this process: its path, address and offset in the file of its code."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        address, rights, offset, _, _, *path = line.split()
        if path and name in path[0] and "x" in rights:
            return path[0], int(address.split("-")[0], 16), int(offset, 16)
    raise AssertionError(name)


@pytest.mark.parametrize(("library", "function"), [("libm.so.6", "cbrt"), ("libc.so.6", "qsort")])
def test_a_function_lies_where_the_linker_has_put_it(library: str, function: str) -> None:
    found = ctypes.CDLL(library)
    path, begin, offset = mapped(f"/{library}")
    address = ctypes.cast(getattr(found, function), ctypes.c_void_p).value
    assert address is not None
    elf = Library(path)
    # By a whole name, which ends with a zero byte as names in the table do.
    assert elf.offset_of(f"{function}\0") == address - begin + offset
    elf.close()


def test_a_name_that_begins_several_functions_is_none_of_them() -> None:
    elf = Library(mapped("/libm.so.6")[0])
    assert elf.offset_of("c") is None
    assert elf.offset_of("no_such_function") is None
    elf.close()
    elf.close()
    assert math.sqrt(9) == 3


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n" * 100, bytes(4096)])
def test_what_is_no_library_is_told(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "library"
    file.write_bytes(content)
    with pytest.raises(ElfError):
        Library(str(file))


def test_a_sparse_file_that_claims_many_names_is_refused_at_once(tmp_path: Path) -> None:
    claimed = bytearray(Path(mapped("/libm.so.6")[0]).read_bytes())
    (sections,), (count,) = (
        struct.unpack_from("<Q", claimed, 40),
        struct.unpack_from("<H", claimed, 60),
    )
    for at in range(sections, sections + 64 * count, 64):
        if struct.unpack_from("<I", claimed, at + 4)[0] == 3:  # SHT_STRTAB
            struct.pack_into("<Q", claimed, at + 32, 1 << 40)
    file = tmp_path / "library"
    file.write_bytes(claimed)
    os.truncate(file, 1 << 41)
    with pytest.raises(ElfError, match="more names than a library has"):
        Library(str(file))


def test_damaged_libraries_are_told_or_have_fewer_functions(tmp_path: Path) -> None:
    whole = Path(mapped("/libm.so.6")[0]).read_bytes()
    dice = random.Random(1)
    file = tmp_path / "library"
    for _ in range(200):
        damaged = bytearray(whole[: dice.choice((len(whole), dice.randrange(64, len(whole))))])
        for _ in range(dice.randrange(1, 5)):
            damaged[dice.randrange(6, 64)] = dice.randrange(256)
        file.write_bytes(damaged)
        try:
            elf = Library(str(file))
        except ElfError:
            continue
        place = elf.offset_of("cbrt\0")
        assert place is None or 0 <= place < mmap.PAGESIZE + len(whole)
        elf.close()
