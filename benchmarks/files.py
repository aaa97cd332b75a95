"""The 4096 files of 4 KiB that the syscall-heavy loops read."""

from __future__ import annotations

import os
from pathlib import Path

FILES = 4096
FILE_BYTES = 4096


def make_files(root: Path) -> None:
    """Write them, of random bytes, into a new folder."""
    root.mkdir()
    for index in range(FILES):
        (root / str(index)).write_bytes(os.urandom(FILE_BYTES))
