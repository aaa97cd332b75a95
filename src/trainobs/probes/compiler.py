"""A compiler that knows BPF: clang, or the one inside the `ziglang` wheel.

bpf/build.py compiles our own programs by it, where nothing but Python may be installed yet: hence
the standard library alone.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

ZIG = "ziglang>=0.14"
"""The package that brings a compiler where there is no clang."""

TARGET_ARCH = {"x86_64": "x86", "aarch64": "arm64"}
"""Supported machines, and what bpf_tracing.h calls them."""

# BTF comes with -g.
FLAGS = ("-O2", "-g", "-mcpu=v3", "-Wall", "-fno-unwind-tables")


def has_clang() -> bool:
    """Whether clang is on the PATH."""
    return shutil.which("clang") is not None


def compiler_command(choice: str = "auto") -> list[str] | None:
    """The beginning of the compile command, None without a compiler; `auto`: clang before zig."""
    if choice != "zig" and has_clang():
        return ["clang", "-target", "bpfel"]
    zig = importlib.util.find_spec("ziglang") if choice != "clang" else None
    if zig is None or zig.origin is None:
        return None
    # Not `-m ziglang`, which looks in the working directory first.
    return [str(Path(zig.origin).with_name("zig")), "cc", "-target", "bpfel-freestanding"]


def without_compiler(choice: str = "auto") -> tuple[str, str]:
    """What was found where there is no compiler, and what to do about it."""
    sought = {"clang": "no clang on the PATH", "zig": f"no ziglang package for {sys.executable}"}
    return (
        sought.get(choice) or ", and ".join(sought.values()),
        f"install clang (apt-get install clang), or: {sys.executable} -m pip install '{ZIG}'",
    )
