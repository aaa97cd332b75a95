"""Descriptors of processes, also where Python cannot open any."""

from __future__ import annotations

import ctypes
import os

_PIDFD_OPEN = 434  # include/uapi/asm-generic/unistd.h, and x86_64: Linux 5.3


def pidfd_open(tgid: int) -> int:
    """As `os.pidfd_open`, which a Python lacks that was built with headers before Linux 5.3.

    Raises:
        OSError: ProcessLookupError if there is no such process.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    opened = libc.syscall(*map(ctypes.c_long, (_PIDFD_OPEN, tgid, 0)))
    if opened < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(opened)
