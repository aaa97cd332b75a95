#!/usr/bin/env python3
"""Compile the BPF programs into object files for a type of machine.

usage: python bpf/build.py [--out DIR] [--machine x86_64|aarch64] [--compiler auto|clang|zig]
                           [--werror] [-v]

Needs Python and a compiler that knows BPF, nothing else: `clang`, or the `ziglang` wheel from PyPI,
which holds the same compiler. The running kernel does not matter: libbpf fits the object to the
kernel that it is loaded on (CO-RE).
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))  # this file runs before the package is installed, too

from trainobs.core.compiled import mark_of  # noqa: E402
from trainobs.probes.compiler import (  # noqa: E402
    FLAGS,
    TARGET_ARCH,
    ZIG,
    compiler_command,
    has_clang,
    without_compiler,
)

__all__ = ["TARGET_ARCH", "ZIG", "build", "copy_headers", "has_clang"]

SOURCE = "bpf/trainobs.bpf.c"
SUPPORT = "bpf/support.bpf.c"
SEEN = "bpf/seen.bpf.c"
AGAIN = "bpf/again.bpf.c"
KINDS = {"": "", ".nokfunc": "-DTOBS_NO_KFUNC", ".preemptible": "-DTOBS_PREEMPTIBLE"}
"""The second kind is for kernels without the kfunc that the first one calls: READ in reading.h. The
third one is for those on which a program may lose its CPU: preemption.h."""

OBJECTS = ROOT / "src" / "trainobs" / "probes" / "objects"

HEADERS = (
    *("bpf/trainobs_probe.h", "bpf/own_preemption.h"),
    *("bpf/vmlinux.h", "bpf/linux/*.h", "bpf/vendor/bpf/*.h"),
    "bpf/vendor/libbpf-1.7/bpf/*.h",  # before bpf/*.h where that libbpf runs: probes/usdt.py
    *("bpf/trainobs_bcc.c", "bpf/trainobs.h", "bpf/task_state.h", "bpf/own.h"),  # of a BccProbe
)
"""What a program of a user's includes; below `include/` without the first of these folders."""

# File names come with BTF: relative ones, so that no builder's folder is in them.
PLACES = ("-fdebug-compilation-dir=.", "-Ibpf", "-Ibpf/vendor")


class BuildError(Exception):
    """The programs cannot be compiled; the message says what failed, what was found, what to do."""

    def __init__(self, failed: str, found: str, do: str) -> None:
        super().__init__(f"{failed}\n  found: {found}\n  do:    {do}")


def machine(name: str | None = None) -> str:
    """A type of machine as the object's name carries it, by default that of this machine."""
    name = name or platform.machine()
    if name not in TARGET_ARCH:
        raise BuildError(
            f"cannot build the BPF programs for {name}",
            f"supported are {', '.join(TARGET_ARCH)}",
            "use trainobs on one of these",
        )
    return name


def object_paths(arch: str, out: Path = OBJECTS) -> dict[Path, tuple[str, str]]:
    """Where the objects for a type of machine belong: their sources, and what sets them apart.

    Those of `KINDS`, and likewise those that count files, which are more to verify (files.bpf.h).
    Then one that is linked to programs of a user's, one for processes observed from outside, and
    one that is loaded behind each program of a user's at a tracepoint.
    """
    return {
        **{
            out / f"trainobs.{arch}{kind}{files}.bpf.o": (SOURCE, f"{define} {counts}")
            for files, counts in (("", ""), (".files", "-DTOBS_FILES"))
            for kind, define in KINDS.items()
        },
        out / f"support.{arch}.bpf.o": (SUPPORT, ""),
        out / f"seen.{arch}.bpf.o": (SEEN, ""),
        out / f"again.{arch}.bpf.o": (AGAIN, ""),
    }


def compiler(choice: str = "auto") -> list[str]:
    """The beginning of the compile command; `auto` takes clang before zig."""
    command = compiler_command(choice)
    if command is None:
        raise BuildError("cannot compile the BPF programs: no compiler", *without_compiler(choice))
    return command


def copy_headers(out: Path = OBJECTS) -> list[Path]:
    """Bring what a program of a user's includes to the objects; the paths."""
    copies = []
    for source in sorted(path for pattern in HEADERS for path in ROOT.glob(pattern)):
        inside = source.relative_to(ROOT / "bpf")
        parts = inside.parts[1:] if inside.parts[0] == "vendor" else inside.parts
        target = out / "include" / Path(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}.tmp")
        shutil.copyfile(source, fresh)
        fresh.replace(target)
        copies.append(target)
    return copies


SHT_NOBITS = 8  # .bss: a size, but no bytes in the file


def without_dwarf(elf: bytes) -> bytes:
    """The 64-bit little-endian object `elf` with its DWARF sections emptied.

    DWARF is most of the file, and libbpf reads BTF alone. `llvm-strip -g` does as much, but comes
    neither with clang nor with zig. Emptied sections keep their headers, so that no symbol and no
    relocation needs a new number.
    """
    section = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    count, names_index = struct.unpack_from("<HH", elf, 0x3C)
    headers = [list(section.unpack_from(elf, table + i * section.size)) for i in range(count)]
    names = headers[names_index][4]

    kept = bytearray(elf[:64])
    for header in headers:
        name, kind, _, _, offset, size, _, _, align, _ = header
        text = elf[names + name : elf.index(b"\0", names + name)]
        if text.startswith((b".debug_", b".rel.debug_")):
            size = 0
        kept += bytes(-len(kept) % max(align, 1))
        header[4:6] = len(kept), size
        if kind != SHT_NOBITS:
            kept += elf[offset : offset + size]
    kept += bytes(-len(kept) % 8)
    struct.pack_into("<Q", kept, 0x28, len(kept))
    return bytes(kept) + b"".join(section.pack(*header) for header in headers)


def build(
    out: Path = OBJECTS,
    choice: str = "auto",
    *,
    arch: str | None = None,
    werror: bool = False,
    verbose: bool = False,
) -> list[Path]:
    """Compile all programs for a type of machine, by default this one; the objects' paths.

    Raises:
        BuildError: no compiler, an unsupported machine, or an error in the programs.
    """
    arch = machine(arch)
    command = [*compiler(choice), *FLAGS, *PLACES, f"-D__TARGET_ARCH_{TARGET_ARCH[arch]}"]
    command += ["-Werror"] if werror else []
    targets = object_paths(arch, out.resolve())
    for target, (source, define) in targets.items():
        _compile([*command, *define.split()], source, target, verbose)
    return list(targets)


def _compile(command: list[str], source: str, target: Path, verbose: bool) -> None:
    fresh = target.with_suffix(f".{os.getpid()}.tmp")
    command = [*command, "-c", source, "-o", str(fresh)]
    if verbose:
        print(shlex.join(command), file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(
                f"cannot compile {source}",
                f"{shlex.join(command)}\n{done.stderr.strip()}",
                "read the compiler's message above; --compiler picks the other compiler",
            )
        if verbose:
            sys.stderr.write(done.stderr)
        fresh.write_bytes(without_dwarf(fresh.read_bytes()) + mark_of(ROOT / "bpf"))
        # Renamed, so that a run which starts meanwhile loads the old object or the new, never half.
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def main() -> int:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OBJECTS, help="folder for the objects")
    parser.add_argument("--machine", choices=tuple(TARGET_ARCH), help="default: this one")
    parser.add_argument("--compiler", choices=("auto", "clang", "zig"), default="auto")
    parser.add_argument("--werror", action="store_true", help="warnings are errors")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the command")
    args = parser.parse_args()
    try:
        build(args.out, args.compiler, arch=args.machine, werror=args.werror, verbose=args.verbose)
        copy_headers(args.out)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
