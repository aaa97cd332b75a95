"""Whether a compiled file is all there."""

from __future__ import annotations

import os
import struct
from pathlib import Path

_HEADER = struct.Struct("<40xQ10xHH2x")  # e_shoff, e_shentsize, e_shnum


def is_whole(path: Path) -> bool:
    """Whether an ELF file is there to its end; one that was cut off may end whom it is loaded by.

    Source: System V ABI, chapter 4. Linkers put the table of sections last.
    """
    try:
        with path.open("rb") as file:
            sections, size, count = _HEADER.unpack(file.read(_HEADER.size))
            return bool(os.fstat(file.fileno()).st_size >= sections + size * count)
    except (OSError, struct.error):
        return False
