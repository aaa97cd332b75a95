#!/usr/bin/env python3
"""Run the probes with another libbpf than the system's, as root.

usage: try_libbpf.py run LIBRARY   load, attach and count with this libbpf.so: one line
       try_libbpf.py plain FILE    write the kernel's types as pahole wrote them in 2021

libbpf 0.x cannot read the types of a kernel since 6.0. With such as it can, for one process:

    try_libbpf.py plain /var/tmp/plain.btf
    unshare --mount sh -c 'mount --bind /var/tmp/plain.btf /sys/kernel/btf/vmlinux &&
        exec python scripts/try_libbpf.py run LIBRARY'
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from pathlib import Path

from trainobs.core.abi import FileClass, Op
from trainobs.core.errors import ProbeError
from trainobs.probes import libbpf, shared
from trainobs.probes.compiling import OBJECTS
from trainobs.probes.kernel_names import KERNEL_BTF, KernelNames
from trainobs.probes.libbpf_log import captured_log
from trainobs.probes.local_backend import LocalBackend

INT, ENUM, CONST = 1, 6, 10  # BTF_KIND_...
DECL_TAG, TYPE_TAG, ENUM64 = 17, 18, 19  # libbpf knows them since 0.6, 0.7 and 1.0
MEMBERS = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}  # kind -> bytes of each
EXTRA = {1: 4, 3: 12, 14: 4, 17: 4}  # kind -> bytes after the header
FILES = 23


def plain(types: bytes) -> bytes:
    """The same types with the same numbers, without the kinds that came later."""
    magic, version, flags, size, at, length, strings, rest = struct.unpack_from("<HBBIIIII", types)
    new = bytearray()
    here, end = size + at, size + at + length
    while here < end:
        name, info, width = struct.unpack_from("<III", types, here)
        kind, count = info >> 24 & 0x1F, info & 0xFFFF
        length = EXTRA.get(kind, 0) + count * MEMBERS.get(kind, 0)
        body = types[here + 12 : here + 12 + length]
        here += 12 + length
        if kind == ENUM64:
            info, body = (
                info & 1 << 31 | ENUM << 24 | count,
                b"".join(body[i : i + 8] for i in range(0, len(body), 12)),
            )
        elif kind == DECL_TAG:
            info, width, body = INT << 24, 4, struct.pack("<I", 32)
        elif kind == TYPE_TAG:
            name, info = 0, CONST << 24
        new += struct.pack("<III", name, info, width) + body
    header = struct.pack("<HBBIIIII", magic, version, flags, size, 0, len(new), len(new), rest)
    return header + new + types[size + strings : size + strings + rest]


def run() -> list[object]:
    """Version, then what works, each "yes" or why not."""
    try:
        library = libbpf.open_library()
    except ProbeError as error:
        return ["-", "no", "-", "-", "-", error.found]
    version = library.libbpf_version_string().decode()
    with captured_log(library) as log:
        file = shared.object_files(KernelNames())[0]
        whole = libbpf.open_object(library, os.fsencode(file))
    if not whole:
        return [version, "no", "-", "-", "-", *log[:1]]
    library.bpf_object__close(whole)
    try:
        side = LocalBackend()
    except ProbeError as error:
        loads = "yes" if error.failed.startswith("cannot attach") else "no"
        return [version, "yes", loads, "no", "-", error.found]
    try:
        on = sum(state == "on" for state in side.status.values())
        off = {name: why for name, why in side.status.items() if why != "on"}
        right = "exact" if counts_exactly(side) else "WRONG"
        return [version, "yes", "yes", f"{on}/{len(side.status)}", right, off or ""]
    finally:
        side.stop()


def counts_exactly(side: LocalBackend) -> bool:
    """Read files of known sizes; whether the probes count as many calls and bytes."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        sizes = [1009 * (i + 1) for i in range(FILES)]
        for i, size in enumerate(sizes):
            Path(place, str(i)).write_bytes(bytes(size))
        side.adopt()
        side.add_root(Path(place), FileClass.DATA)
        before = side.rows[:, Op.READ, FileClass.DATA].copy()
        for i in range(FILES):
            descriptor = os.open(f"{place}/{i}", os.O_RDONLY)
            while os.read(descriptor, 1000):
                pass
            os.close(descriptor)
        after = side.rows[:, Op.READ, FileClass.DATA]
        counted = [int((after[name] - before[name]).sum()) for name in ("count", "bytes")]
    return counted == [sum(-(-size // 1000) + 1 for size in sizes), sum(sizes)]


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("plain", "run"):
        sys.exit(__doc__)
    if sys.argv[1] == "plain":
        Path(sys.argv[2]).write_bytes(plain(KERNEL_BTF.read_bytes()))
    else:
        libbpf.SONAMES = (sys.argv[2], sys.argv[2])
        shared.OBJECTS = Path(os.environ.get("OBJECTS", OBJECTS))  # type: ignore[attr-defined] # imported there
        says, opens, loads, attaches, counts, *why = run()
        print(f"{says:<7} {opens:<7} {loads:<7} {attaches:<8} {counts:<8}", *why)
