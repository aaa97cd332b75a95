"""What programs and the functions that they call have on the stack, as older kernels count it.

Up to Linux 6.8 or so each function counts in steps of 32 bytes, also one that has none, and those
that call each other may have 512. What is newer takes more, so no test that loads would tell.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

MOST, STEP = 512, 32
FRAME = 10  # the register that points to the end of a function's stack
ADD, MOVE = 0x07, 0xBF  # opcodes, uapi/linux/bpf.h
LOAD, STORES = 1, (2, 3)  # their classes that say where in memory
CALLED, ADDRESS = 10, 1  # R_BPF_64_32, R_BPF_64_64
SYMBOLS, RELOCATIONS, IS_CODE = 2, 9, 4  # SHT_SYMTAB, SHT_REL, SHF_EXECINSTR
FUNCTION, SECTION = 2, 3  # STT_FUNC, STT_SECTION


class Function(NamedTuple):
    name: str
    section: int
    begin: int  # in bytes, like all here
    size: int


class Object:
    """Functions of an object file, what each has on the stack, and whom it calls."""

    def __init__(self, path: Path) -> None:
        self._elf = path.read_bytes()
        (table,) = struct.unpack_from("<Q", self._elf, 0x28)
        (count,) = struct.unpack_from("<H", self._elf, 0x3C)
        section = struct.Struct("<IIQQQQIIQQ")
        self._sections = [
            section.unpack_from(self._elf, table + i * section.size) for i in range(count)
        ]
        self._symbols = list(self._read_symbols())
        self.functions = [
            Function(name, place, at, size)
            for name, kind, place, at, size in self._symbols
            if kind == FUNCTION
        ]
        self.calls: dict[Function, set[Function]] = {each: set() for each in self.functions}
        for caller, callee in self._read_calls():
            self.calls[caller].add(callee)

    def _read_symbols(self) -> Iterator[tuple[str, int, int, int, int]]:
        (header,) = (each for each in self._sections if each[1] == SYMBOLS)
        names = self._sections[header[6]][4]
        for at in range(header[4], header[4] + header[5], 24):
            name, info, _, place, value, size = struct.unpack_from("<IBBHQQ", self._elf, at)
            begin = names + name
            text = self._elf[begin : self._elf.index(b"\0", begin)].decode()
            yield text, info & 15, place, value, size

    def _at(self, section: int, offset: int) -> Function | None:
        for each in self.functions:
            if each.section == section and each.begin <= offset < each.begin + each.size:
                return each
        return None

    def _read_calls(self) -> Iterator[tuple[Function, Function]]:
        for _, kind, _, _, start, size, _, place, _, _ in self._sections:
            if kind != RELOCATIONS or not self._sections[place][2] & IS_CODE:
                continue
            for at in range(start, start + size, 16):
                offset, info = struct.unpack_from("<QQ", self._elf, at)
                _, symbol_kind, section, value, _ = self._symbols[info >> 32]
                *_, number = self._instruction(place, offset)
                if symbol_kind == SECTION and info & 0xFFFFFFFF == CALLED:
                    value += (number + 1) * 8
                elif symbol_kind == SECTION:
                    value += number
                caller, callee = self._at(place, offset), self._at(section, value)
                if caller and callee:
                    yield caller, callee

    def _instruction(self, section: int, offset: int) -> tuple[int, int, int, int]:
        at = self._sections[section][4] + offset
        code, registers, where, number = struct.unpack_from("<BBhi", self._elf, at)
        return code, registers, where, number

    def depth(self, function: Function) -> int:
        """Bytes of its own."""
        deepest = 0
        offsets = range(function.begin, function.begin + function.size, 8)
        instructions = [self._instruction(function.section, offset) for offset in offsets]
        for code, registers, where, _ in instructions:
            to, of = registers & 15, registers >> 4
            if (code & 7 == LOAD and of == FRAME) or (code & 7 in STORES and to == FRAME):
                deepest = max(deepest, -where)
        for (code, registers, _, _), (then, next_registers, _, number) in pairwise(instructions):
            of_frame = code == MOVE and registers >> 4 == FRAME
            if of_frame and then == ADD and next_registers & 15 == registers & 15:
                deepest = max(deepest, -number)
        return deepest

    def deepest(self, function: Function) -> tuple[int, list[str]]:
        """What it has with those that it calls, and the way there."""
        bytes_, way = max((self.deepest(each) for each in self.calls[function]), default=(0, []))
        own = max(self.depth(function), 1)
        return bytes_ + (own + STEP - 1) // STEP * STEP, [f"{function.name} {own}", *way]


@pytest.mark.parametrize("compiler", ["clang", "zig"])
def test_what_is_called_in_turn_keeps_to_the_stack_of_older_kernels(
    compiler: str, compiled: Callable[..., list[Path]]
) -> None:
    for path in compiled(compiler, platform.machine()):
        each = Object(path)
        assert each.functions
        for function in each.functions:
            bytes_, way = each.deepest(function)
            assert bytes_ <= MOST, (path.name, way)
