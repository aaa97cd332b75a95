"""Linux's asynchronous I/O with bare system calls, as libaio makes them (io_submit(2))."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct

SETUP, DESTROY, GET_EVENTS, SUBMIT = (
    (206, 207, 208, 209) if platform.machine() == "x86_64" else (0, 1, 4, 2)
)
READ = 0  # IOCB_CMD_PREAD

IOCB = struct.Struct("<QIiHhIQQqQII")
"""struct iocb: data, key and flags, opcode, priority, fd, buffer, bytes, offset, then zero."""

_libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def read(fd: int, buffer: mmap.mmap) -> int:
    """Read the first bytes of a file into a buffer, by one request; how many bytes there were."""
    context = ctypes.c_ulong()
    call(SETUP, 1, ctypes.byref(context))
    try:
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        request = IOCB.pack(0, 0, 0, READ, 0, fd, address, len(buffer), 0, 0, 0, 0)
        iocb = ctypes.create_string_buffer(request, IOCB.size)
        requests = (ctypes.c_void_p * 1)(ctypes.addressof(iocb))
        call(SUBMIT, context, ctypes.c_long(1), requests)
        event = ctypes.create_string_buffer(32)
        call(GET_EVENTS, context, ctypes.c_long(1), ctypes.c_long(1), event, None)
        done: int = struct.unpack_from("<q", event.raw, 16)[0]
        return done
    finally:
        call(DESTROY, context)
