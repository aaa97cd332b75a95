"""Run a command that the kernel refuses some system calls, as container runtimes do.

Usage: python -m benchmarks.storms.without_calls COMMAND [ARGUMENT...]

Refused, with EPERM, are bpf and perf_event_open, as by the usual filters of Docker and Kubernetes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

CALLS = {"x86_64": (321, 298), "aarch64": (280, 241)}[platform.machine()]
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD_NUMBER, IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF_LD | BPF_W | BPF_ABS, and so on
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def main() -> None:
    """Set the filter, and become the command."""
    lines = [(LOAD_NUMBER, 0, 0, 0)]
    lines += [(IF_EQUAL, len(CALLS) - at, 0, call) for at, call in enumerate(CALLS)]
    lines += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in lines))
    program = _Program(len(lines), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), "prctl")
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
