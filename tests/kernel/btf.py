"""The BTF of an object file, or of the kernel: its types, as the compiler saw them.

Source: Documentation/bpf/btf.rst of the kernel.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

INT, POINTER, ARRAY, STRUCT, UNION, ENUM = range(1, 7)
FUNC_PROTO, VARIABLE, SECTION, DECL_TAG, ENUM64 = 13, 14, 15, 17, 19
EXTRA_BYTES = {INT: 4, ARRAY: 12, VARIABLE: 4, DECL_TAG: 4}
"""What follows a type of a kind once ..."""
MEMBER_BYTES = {STRUCT: 12, UNION: 12, ENUM: 8, FUNC_PROTO: 8, SECTION: 12, ENUM64: 12}
"""... and for each of its members."""


@dataclass(frozen=True)
class Type:
    """One type: `members` holds (name, number), which is a value, or a type and a bit offset."""

    kind: int
    name: str
    size_or_type: int
    members: tuple[tuple[str, int, int], ...]
    words: tuple[int, ...]


class Btf:
    """Types by number, as the object file holds them; number 0 is void."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        data = section(data, b".BTF") if data.startswith(b"\x7fELF") else data
        magic, _, _, header, types, types_bytes, strings, _ = struct.unpack_from("<HBBIIIII", data)
        assert magic == 0xEB9F, "no BTF of this machine's byte order"
        self._strings = data[header + strings :]
        self.types = [Type(0, "void", 0, (), ())]
        at, end = header + types, header + types + types_bytes
        while at < end:
            at = self._read(data, at)

    def named(self, kind: int, name: str) -> Type:
        """The type of that kind and name."""
        found = [t for t in self.types if (t.kind, t.name) == (kind, name)]
        assert len(found) == 1, f"{name} is {len(found)} times in the BTF of the object"
        return found[0]

    def enumerators(self, name: str) -> dict[str, int]:
        return {member: value for member, value, _ in self.named(ENUM, name).members}

    def layout(self, name: str) -> dict[str, tuple[int, int]]:
        """Members of a structure: name -> (byte offset, bytes)."""
        members = self.named(STRUCT, name).members
        return {member: (bit // 8, self.size(kind)) for member, kind, bit in members}

    def size(self, number: int) -> int:
        """Bytes of a type."""
        found = self.types[number]
        if found.kind == ARRAY:
            return self.length(number) * self.size(found.words[0])
        if found.kind == POINTER:
            return 8
        if found.kind in (INT, STRUCT, UNION, ENUM, ENUM64):
            return found.size_or_type
        return self.size(found.size_or_type)  # const, volatile, typedef

    def length(self, number: int) -> int:
        """Elements of an array, whatever qualifies it."""
        found = self.types[number]
        return found.words[2] if found.kind == ARRAY else self.length(found.size_or_type)

    def map_numbers(self, name: str) -> dict[str, int]:
        """What `__uint` says of a map; a number is encoded as the length of an array."""
        return self._numbers(self.types[self.named(VARIABLE, name).size_or_type])

    def _numbers(self, definition: Type) -> dict[str, int]:
        pointed = {member: self.types[kind].size_or_type for member, kind, _ in definition.members}
        arrays = {m: t for m, t in pointed.items() if self.types[t].kind == ARRAY}
        return {member: self.length(kind) for member, kind in arrays.items()}

    def inner_numbers(self, name: str) -> dict[str, int]:
        """The same of the maps that an array of maps holds: `__array(values, ...)`."""
        definition = self.types[self.named(VARIABLE, name).size_or_type]
        (values,) = (kind for member, kind, _ in definition.members if member == "values")
        pointer = self.types[self.types[values].words[0]]
        return self._numbers(self.types[pointer.size_or_type])

    def map_value_size(self, name: str) -> int:
        definition = self.types[self.named(VARIABLE, name).size_or_type]
        (kind,) = (kind for member, kind, _ in definition.members if member == "value")
        return self.size(self.types[kind].size_or_type)

    def map_types(self) -> dict[str, dict[str, int]]:
        """The types of keys and values of all maps, by map; of maps in maps those of the inner."""
        found = {}
        for variable in self.types:
            definition = self.types[variable.size_or_type] if variable.kind == VARIABLE else None
            of = {member: kind for member, kind, _ in definition.members} if definition else {}
            if "type" not in of:
                continue
            if "values" in of:
                pointer = self.types[self.types[of["values"]].words[0]]
                of = {m: kind for m, kind, _ in self.types[pointer.size_or_type].members}
            found[variable.name] = {
                m: self.types[kind].size_or_type for m, kind in of.items() if m in ("key", "value")
            }
        return found

    def holes(self, number: int) -> list[str]:
        """Members of a structure, however deep, in front of which there are bytes of no member."""
        found = self.types[number]
        if found.kind == ARRAY:
            return self.holes(found.words[0])
        if found.kind in (POINTER, INT, UNION, ENUM, ENUM64):
            return []
        if found.kind != STRUCT:
            return self.holes(found.size_or_type)
        at, holes = 0, []
        for member, kind, bit in found.members:
            holes += [f"{found.name}.{member}"] if bit // 8 > at else self.holes(kind)
            at = bit // 8 + self.size(kind)
        return holes + ([f"the end of {found.name}"] if at < found.size_or_type else [])

    def _read(self, data: bytes, at: int) -> int:
        name, info, size_or_type = struct.unpack_from("<III", data, at)
        kind, count = info >> 24 & 0x1F, info & 0xFFFF
        at += 12
        words = struct.unpack_from(f"<{EXTRA_BYTES.get(kind, 0) // 4}I", data, at)
        at += EXTRA_BYTES.get(kind, 0)
        step = MEMBER_BYTES.get(kind, 0)
        members = []
        # With bit fields, which the kind's flag tells of, the upper byte is the width of the field.
        offset_bits = 0 if step < 12 else 0xFFFFFF if info >> 31 else 0xFFFFFFFF
        for _ in range(count if step else 0):
            first, second, third = struct.unpack_from("<III", data.ljust(at + 12, b"\0"), at)
            members.append((self._text(first), second, third & offset_bits))
            at += step
        self.types.append(Type(kind, self._text(name), size_or_type, tuple(members), words))
        return at

    def _text(self, offset: int) -> str:
        return self._strings[offset : self._strings.find(b"\0", offset)].decode(errors="replace")


def section(elf: bytes, name: bytes) -> bytes:
    """Contents of a section of a 64-bit little-endian ELF file."""
    offset, size = section_extent(elf, name)
    return elf[offset : offset + size]


def section_extent(elf: bytes, name: bytes) -> tuple[int, int]:
    """Where a section lies: (offset, bytes)."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    count, names = struct.unpack_from("<HH", elf, 0x3C)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + 64 * i) for i in range(count)]
    texts = headers[names][4]
    for header in headers:
        if elf[texts + header[0] :].split(b"\0", 1)[0] == name:
            return header[4], header[5]
    raise AssertionError(f"the object has no section {name.decode()}")
