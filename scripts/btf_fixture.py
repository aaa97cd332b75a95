#!/usr/bin/env python3
"""Make the fixture of a kernel for tests/probes/test_kernels.py.

usage: python scripts/btf_fixture.py BTF MACHINE OUT.btf.gz

BTF is the file that a kernel has at /sys/kernel/btf/vmlinux. Of its types only those are kept that
the programs read, and of its names only those that the loader asks for, so that some kB are left.
Needs bpftool.
"""

from __future__ import annotations

import gzip
import runpy
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from trainobs.probes.kernel_names import KernelNames
from trainobs.probes.programs import PROBES, programs_of
from trainobs.probes.shared import KFUNC

ROOT = Path(__file__).resolve().parent.parent
HELPERS = ("BPF_FUNC_loop", "BPF_FUNC_task_pt_regs", "BPF_FUNC_check_mtu")
HEADER = struct.Struct("<HBBIIIII")  # struct btf_header


def asked_for(names: KernelNames) -> list[bytes]:
    """Names that the loader may ask for, of those that a kernel has."""
    variants = [variant for program in programs_of(PROBES).values() for variant in program.variants]
    targets = {
        tuple(point.split("/")) for variant in variants for _, point in variant.attach_points
    }
    traced = [name for kind, name in targets if kind == "tp_btf" and names.has_tracepoint(name)]
    plain = {name for kind, name in targets if kind in ("fentry", "fexit")}
    plain |= {KFUNC, *HELPERS, *(variant.needs for variant in variants if variant.needs)}
    found = [f"btf_trace_{name}" for name in traced] + [name for name in plain if name in names]
    return [name.encode() for name in sorted(found)]


def with_strings(btf: bytes, names: list[bytes]) -> bytes:
    """A BTF with more names among its strings, which come last in it."""
    magic, version, flags, header, types, types_bytes, strings, size = HEADER.unpack_from(btf)
    assert header + strings + size == len(btf), "strings do not come last"
    more = b"".join(name + b"\0" for name in names)
    begin = HEADER.pack(
        magic, version, flags, header, types, types_bytes, strings, size + len(more)
    )
    return begin + btf[HEADER.size :] + more


def main(source: str, machine: str, target: str) -> None:
    """Run as a command."""
    build = runpy.run_path(str(ROOT / "bpf" / "build.py"))["build"]
    with tempfile.TemporaryDirectory() as place:
        objects = build(Path(place), arch=machine)
        least = Path(place) / "least.btf"
        subprocess.run(["bpftool", "gen", "min_core_btf", source, least, *objects], check=True)
        fixture = with_strings(least.read_bytes(), asked_for(KernelNames(Path(source))))
    Path(target).write_bytes(gzip.compress(fixture, 9, mtime=0))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
