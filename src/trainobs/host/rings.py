"""Rings of io_uring that this process has."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")


def has_rings(descriptors: Path = DESCRIPTORS) -> bool:
    """Whether a descriptor is a ring; True where that cannot be seen.

    Source: fs/anon_inodes.c and io_uring/io_uring.c of the kernel, for the name of the link.
    """
    try:
        names = os.listdir(descriptors)
    except OSError:
        return True
    for name in names:
        with suppress(OSError):  # closed meanwhile
            if os.readlink(descriptors / name) == "anon_inode:[io_uring]":
                return True
    return False
