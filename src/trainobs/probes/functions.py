"""Whether this machine lets programs attach to functions of the kernel (fentry, fexit).

Some refuse each such program by EPERM, before they look at it. To learn that from libbpf takes the
load of a whole object. To ask with a program for no function takes microseconds: who lets programs
attach says that this one is invalid.

Source: bpf_prog_load in kernel/bpf/syscall.c.
"""

from __future__ import annotations

import ctypes as C
import errno
import os
import platform
import struct

_BPF = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD = 5
_TRACING, _TRACEPOINT, _FENTRY = 26, 23, 24  # BPF_PROG_TYPE_TRACING, BPF_TRACE_RAW_TP, ..._FENTRY
_RETURN_ZERO = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)
_ATTRIBUTES = struct.Struct("=IIQQ44xI36xI")
"""type, instructions, where they are, licence; expected_attach_type, attach_btf_id"""


def refuses_functions() -> bool:
    """Whether programs of functions are refused, and others are not."""
    return _asked(_FENTRY) == errno.EPERM != _asked(_TRACEPOINT)


def bpf_number() -> int | None:
    """The number of bpf(2); None on a machine of another type."""
    return _BPF.get(platform.machine())


def _asked(attach_type: int) -> int:
    """The error for a program that is attached to nothing; 0: there was none."""
    number = bpf_number()
    if number is None:
        return 0
    instructions, licence = C.create_string_buffer(_RETURN_ZERO), C.create_string_buffer(b"GPL")
    places = C.addressof(instructions), C.addressof(licence)
    call = C.create_string_buffer(_ATTRIBUTES.pack(_TRACING, 2, *places, attach_type, 0))
    libc = C.CDLL(None, use_errno=True)
    descriptor = libc.syscall(C.c_long(number), _PROG_LOAD, call, _ATTRIBUTES.size)
    if descriptor < 0:
        return C.get_errno()
    os.close(descriptor)
    return 0
