"""Giving up root inside a running interpreter, whose files another user may not be able to read."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager

CAP_PERFMON, CAP_BPF = 38, 39
NOBODY = 65534

_CAPSET = {"x86_64": 126, "aarch64": 91}[os.uname().machine]
_VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_GET_DUMPABLE, _SET_DUMPABLE, _KEEP_CAPABILITIES = 3, 4, 8  # PR_GET_DUMPABLE and so on

_libc = ctypes.CDLL(None, use_errno=True)


def become_nobody(capabilities: Collection[int] = (), uid: int = NOBODY, gid: int = NOBODY) -> None:
    """Become uid 65534, with no capability but those given. For a child: there is no way back.

    Dumpable, as after an exec: else /proc/self would be root's, and the service would not serve it.
    """
    assert _libc.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0) == 0
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    keep_capabilities(capabilities)
    set_dumpable(1)


@contextmanager
def another_user() -> Iterator[None]:
    """As a user to whom only the modes of files give rights: this thread, and root's go with it."""
    _libc.setfsuid(NOBODY)
    try:
        yield
    finally:
        _libc.setfsuid(os.geteuid())
        set_dumpable(1)  # which a change of the user takes away, and with it the service


def is_dumpable() -> bool:
    """Whether other processes of the same user may look into this one."""
    return _libc.prctl(_GET_DUMPABLE, 0, 0, 0, 0) == 1


def set_dumpable(value: int) -> None:
    """Let other processes of the same user look into this one, or not."""
    assert _libc.prctl(_SET_DUMPABLE, value, 0, 0, 0) == 0


def keep_capabilities(capabilities: Collection[int] = ()) -> None:
    """Give up every other one."""
    mask = sum(1 << number for number in capabilities)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = ctypes.create_string_buffer(struct.pack("Ii", _VERSION, 0))
    data = ctypes.create_string_buffer(struct.pack("6I", low, low, 0, high, high, 0))
    if _libc.syscall(_CAPSET, header, data):
        raise OSError(ctypes.get_errno(), "capset")
