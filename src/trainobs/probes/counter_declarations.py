"""What the object of a user's program says that it counts: TRAINOBS_COUNTER and TRAINOBS_VALUE.

An object may come from anywhere, so nothing in it is believed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from trainobs.core.abi import OWN_COUNTERS
from trainobs.core.errors import ProbeCause, ProbeError, shown
from trainobs.core.own_counter import OwnCounter

_SECTION = b"trainobs"
_HEADER = struct.Struct("<IIQQQQ")  # the begin of Elf64_Shdr: name, type, flags, ..., offset, size
_HEADER_BYTES = 64
_BPF = 247  # EM_BPF of linux/elf-em.h
_MOST_BYTES = 64 << 20
_FIELDS = {"counter": "count", "value": "value"}
_LIKE = re.compile(r"(counter|value):([0-9]{1,2}):([^:]*):([^:]*)")


class OwnSum(NamedTuple):
    """One sum: of which counter, by its number, which of `OWN_CELL`, and what it is called."""

    number: int
    field: str
    counter: OwnCounter


def declared_counters(path: Path, probe: str) -> list[OwnSum]:
    """The sums that an object names, in its order.

    Raises:
        ProbeError: REFUSED: it names none, a bad one, or one twice.
        OSError: it cannot be read.
    """
    with path.open("rb") as stream:
        elf = stream.read(_MOST_BYTES)
    try:
        told = _section(elf).decode(errors="replace")
    except (struct.error, ValueError, IndexError) as error:
        do = "compile it for BPF (`clang -target bpf -g`), or give the source"
        raise _refused(probe, f"no object of BPF programs: {error}", do) from error
    return checked_counters([text for text in told.split("\0") if text], probe)


def checked_counters(texts: Sequence[str], probe: str) -> list[OwnSum]:
    """The sums of some texts, as the macros make them.

    Raises:
        ProbeError: REFUSED: there is none, a bad one, or one twice.
    """
    if not texts:
        do = 'include "trainobs_probe.h"; add TRAINOBS_COUNTER(0, "what it counts", "calls")'
        raise _refused(probe, "it names no counter", do)
    told = [_told(text, probe) for text in texts]
    for number, one in enumerate(told):
        if any(one.counter.name == other.counter.name for other in told[:number]):
            found = f"two counters are called {shown(one.counter.title)}"
            raise _refused(probe, found, "give each a name of its own")
    return told


def _told(text: str, probe: str) -> OwnSum:
    match = _LIKE.fullmatch(text)
    if not match:
        do = 'write TRAINOBS_COUNTER(0, "what it counts", "calls"), without colons'
        raise _refused(probe, f"a counter is told as {shown(text)}", do)
    kind, index, title, unit = match.groups()
    if int(index) >= OWN_COUNTERS:
        raise _refused(probe, f"counter {index}", f"number them from 0 to {OWN_COUNTERS - 1}")
    counter = OwnCounter(title, unit, probe)
    if fault := counter.fault():
        raise _refused(
            probe, f"counter {index}, {shown(title)} in {shown(unit)}: {fault}", "rename it"
        )
    return OwnSum(int(index), _FIELDS[kind], counter)


def _section(elf: bytes) -> bytes:
    """The contents of the section; empty without it."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit ELF file in little-endian order")
    (machine,) = struct.unpack_from("<H", elf, 0x12)
    if machine != _BPF:
        raise ValueError(f"an ELF file for machine {machine}, and BPF is {_BPF}")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    count, names_index = struct.unpack_from("<HH", elf, 0x3C)
    headers = [_HEADER.unpack_from(elf, table + i * _HEADER_BYTES) for i in range(count)]
    names = headers[names_index][4]
    for name, _, _, _, offset, size in headers:
        at = names + name
        if elf[at : at + len(_SECTION) + 1] == _SECTION + b"\0":
            return elf[offset : offset + size]
    return b""


def _refused(probe: str, found: str, do: str) -> ProbeError:
    return ProbeError(ProbeCause.REFUSED, f"cannot use {probe}", found, do)
