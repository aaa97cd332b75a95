"""Giving up all that the service does not need.

Source: capabilities(7), capset(2) and prctl(2); `linux/capability.h`.
"""

from __future__ import annotations

import ctypes as C
import os
import platform
import struct

CAP_PERFMON, CAP_BPF = 38, 39
KEPT = 1 << CAP_PERFMON | 1 << CAP_BPF
"""The capabilities that the probes need, as a mask."""

_CAPGET = {"x86_64": 125, "aarch64": 90}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_DROP_BOUND, _NO_NEW_PRIVILEGES = 24, 38  # PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS
_CAPABILITIES = 64


def keep_only_what_probes_need() -> None:
    """Give up every capability but CAP_BPF and CAP_PERFMON, and the way to get any back.

    For the calling thread and the threads that it starts, so before there are others.

    Raises:
        OSError: the kernel refuses.
    """
    libc = C.CDLL(None, use_errno=True)
    kept = _permitted(libc) & KEPT
    for number in range(_CAPABILITIES):
        if not KEPT >> number & 1:
            libc.prctl(_DROP_BOUND, number, 0, 0, 0)  # refused to who has no right to any
    data = C.create_string_buffer(_words(kept, kept, 0))
    _check(libc.syscall(_CAPSET[platform.machine()], _header(), data))
    _check(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))


def _permitted(libc: C.CDLL) -> int:
    """The capabilities that this process may take on."""
    data = C.create_string_buffer(24)
    _check(libc.syscall(_CAPGET[platform.machine()], _header(), data))
    _, low, _, _, high, _ = struct.unpack("6I", data.raw)  # effective, permitted, inheritable
    return int(low | high << 32)


def _header() -> C.Array[C.c_char]:
    return C.create_string_buffer(struct.pack("Ii", _VERSION, 0))


def _words(*masks: int) -> bytes:
    low = [mask & 0xFFFFFFFF for mask in masks]
    return struct.pack("6I", *low, *(mask >> 32 for mask in masks))


def _check(result: int) -> None:
    if result:
        number = C.get_errno()
        raise OSError(number, f"cannot give up privileges: {os.strerror(number)}")
