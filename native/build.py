#!/usr/bin/env python3
"""Compile what is in C: loops over arrays, and a part of the step clock for CPython since 3.10.

usage: python native/build.py [--machine x86_64|aarch64] [--werror] [-v]

Needs a compiler of C and Python's headers; without them Python does the same, and slower. For
another type of machine, and for wheels that are published, it is the compiler of the `ziglang`
wheel, which brings the headers of an old glibc for each.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))  # this file runs before the package is installed, too

from trainobs.core.compiled import mark_of  # noqa: E402

PACKAGE = ROOT / "src" / "trainobs"
CLOCK = ("callback_context", "clock", "loader", "marks", "module", "watched_next")
LOOPS = ("lookups", "bags", "rows")
LIBRARIES = {
    PACKAGE / "core" / "_loops.so": ("-O3", *(f"native/{name}.c" for name in LOOPS)),
    PACKAGE / "steps" / "_fast_path.abi3.so": ("-O2", *(f"native/{name}.c" for name in CLOCK)),
}
"""Each library, and what it is made of."""
# Python calls each function with arguments that not each of them needs, and its macros cast.
FLAGS = (
    *("-fPIC", "-shared", "-fvisibility=hidden", "-s", "-DNDEBUG", "-Wall", "-Wextra"),
    *("-Wno-unused-parameter", "-Wno-missing-field-initializers", "-Wno-cast-function-type"),
)

GLIBC = "2.17"
"""The oldest that a published wheel runs with, by its tag."""


class BuildError(Exception):
    """It cannot be compiled; the message says why."""


def _compiler(arch: str | None) -> list[str]:
    zig = [sys.executable, "-m", "ziglang", "cc"]
    if arch is not None:
        if find_spec("ziglang") is None:
            raise BuildError("compiling for a type of machine by name needs the ziglang package")
        return [*zig, "-target", f"{arch}-linux-gnu.{GLIBC}"]
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    if find_spec("ziglang") is None:
        raise BuildError("there is no cc, gcc or clang on the PATH, and no ziglang package")
    return [*zig, "-target", f"{platform.machine()}-linux-gnu.{GLIBC}"]


def build(*, arch: str | None = None, werror: bool = False, verbose: bool = False) -> list[Path]:
    """Compile for a type of machine, by default this one; the paths.

    Raises:
        BuildError: no compiler, no headers of Python, or an error in the sources.
    """
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").exists():
        raise BuildError(f"Python's headers are not in {include}")
    options = [*_compiler(arch), *FLAGS, *(["-Werror"] if werror else []), f"-I{include}"]
    for target, sources in LIBRARIES.items():
        _compile([*options, *sources], target, verbose)
    return [*LIBRARIES]


def _compile(command: list[str], target: Path, verbose: bool) -> None:
    fresh = target.with_suffix(f".{os.getpid()}.tmp")
    command = [*command, "-o", str(fresh)]
    if verbose:
        print(shlex.join(command), file=sys.stderr)
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"{shlex.join(command)}\n{done.stderr.strip()}")
        with fresh.open("ab") as file:
            file.write(mark_of(ROOT / "native"))
        fresh.replace(target)  # a run that starts meanwhile loads the old one or the new one
    finally:
        fresh.unlink(missing_ok=True)


def main() -> int:
    """Run as a command: it is no failure where it cannot be built, but for `--werror`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--machine", choices=("x86_64", "aarch64"), help="default: this one")
    parser.add_argument("--werror", action="store_true", help="warnings are errors")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the command")
    args = parser.parse_args()
    try:
        build(arch=args.machine, werror=args.werror, verbose=args.verbose)
    except BuildError as error:
        print(f"what is in C stays in Python\n  found: {error}", file=sys.stderr)
        return int(args.werror)
    return 0


if __name__ == "__main__":
    sys.exit(main())
