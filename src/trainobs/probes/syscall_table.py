"""Which system calls the probes follow, where their file descriptor stands, and when one waits.

Source: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (aarch64).
"""

from __future__ import annotations

import platform
from typing import NamedTuple

from trainobs.core.abi import LIST, MARK, NO_OFFSET, RWF, STAT, Op

SIZE = 512
"""`TOBS_SYSCALLS`: numbers from here on are not followed."""


_ENTRY = 5
"""Bytes of `struct tobs_syscall`."""

_NOTHING = -1
"""In the place of an op: it is not followed."""


class _Call(NamedTuple):
    op: int
    fd_arg: int  # from 1; 0: none
    x86_64: int | None
    aarch64: int | None
    source_arg: int = 0  # likewise, of what is read on the way
    offset_arg: int = 0  # likewise, of the position in the file (and RWF); 0: the file's own


_CALLS: dict[str, _Call] = {
    "read": _Call(Op.READ, 1, 0, 63),
    "pread64": _Call(Op.READ, 1, 17, 67, offset_arg=4),
    "readv": _Call(Op.READ, 1, 19, 65),
    "preadv": _Call(Op.READ, 1, 295, 69, offset_arg=4),
    "preadv2": _Call(Op.READ, 1, 327, 286, offset_arg=4 + RWF),
    "write": _Call(Op.WRITE, 1, 1, 64),
    "pwrite64": _Call(Op.WRITE, 1, 18, 68, offset_arg=4),
    "writev": _Call(Op.WRITE, 1, 20, 66),
    "pwritev": _Call(Op.WRITE, 1, 296, 70, offset_arg=4),
    "pwritev2": _Call(Op.WRITE, 1, 328, 287, offset_arg=4 + RWF),
    "sendfile": _Call(Op.WRITE, 1, 40, 71, 2, NO_OFFSET),
    "copy_file_range": _Call(Op.WRITE, 3, 326, 285, 1, NO_OFFSET),
    "splice": _Call(Op.WRITE, 3, 275, 76, 1, NO_OFFSET),
    "fsync": _Call(Op.FSYNC, 1, 74, 82),
    "fdatasync": _Call(Op.FSYNC, 1, 75, 83),
    "sync_file_range": _Call(Op.FSYNC, 1, 277, 84),
    "msync": _Call(Op.FSYNC, 0, 26, 227),
    "open": _Call(Op.OPEN, 0, 2, None),
    "creat": _Call(Op.OPEN, 0, 85, None),
    "openat": _Call(Op.OPEN, 0, 257, 56),
    "openat2": _Call(Op.OPEN, 0, 437, 437),
    "open_by_handle_at": _Call(Op.OPEN, 0, 304, 265),
    "mmap": _Call(Op.MMAP, 5, 9, 222),
    "io_uring_setup": _Call(Op.URING_ENTER, 0, 425, 425),
    "io_uring_enter": _Call(Op.URING_ENTER, 0, 426, 426),
    "io_submit": _Call(Op.AIO, 0, 209, 2),
    "readahead": _Call(Op.HINT, 1, 187, 213),
    "fadvise64": _Call(Op.HINT, 1, 221, 223),
    "prctl": _Call(MARK, 0, 157, 167),
}

_ASIDE: dict[str, _Call] = {
    "stat": _Call(STAT, 0, 4, None),
    "fstat": _Call(STAT, 0, 5, 80),
    "lstat": _Call(STAT, 0, 6, None),
    "newfstatat": _Call(STAT, 0, 262, 79),
    "statx": _Call(STAT, 0, 332, 291),
    "getdents": _Call(LIST, 0, 78, None),
    "getdents64": _Call(LIST, 0, 217, 61),
}
"""Those that are followed only where files are counted."""

_UNCOUNTED: dict[str, _Call] = {
    name: _Call(_NOTHING, 0, *numbers)
    for name, numbers in {
        "lseek": (8, 62),
        "access": (21, None),
        "truncate": (76, 45),
        "ftruncate": (77, 46),
        "rename": (82, None),
        "mkdir": (83, None),
        "rmdir": (84, None),
        "link": (86, None),
        "unlink": (87, None),
        "symlink": (88, None),
        "readlink": (89, None),
        "chdir": (80, 49),
        "fchdir": (81, 50),
        "chmod": (90, None),
        "fchmod": (91, 52),
        "chown": (92, None),
        "fchown": (93, 55),
        "lchown": (94, None),
        "utime": (132, None),
        "mknod": (133, None),
        "statfs": (137, 43),
        "fstatfs": (138, 44),
        "sync": (162, 81),
        "mkdirat": (258, 34),
        "unlinkat": (263, 35),
        "renameat": (264, 38),
        "linkat": (265, 37),
        "symlinkat": (266, 36),
        "readlinkat": (267, 78),
        "fchmodat": (268, 53),
        "fchmodat2": (452, 452),
        "fchownat": (260, 54),
        "utimensat": (280, 88),
        "utimes": (235, None),
        "futimesat": (261, None),
        "mknodat": (259, 33),
        "faccessat": (269, 48),
        "fallocate": (285, 47),
        "syncfs": (306, 267),
        "renameat2": (316, 276),
        "faccessat2": (439, 439),
        "close": (3, 57),
        "close_range": (436, 436),
        **{f"xattr {n}": (188 + n, 5 + n) for n in range(12)},  # setxattr to fremovexattr
    }.items()
}
"""Those that are never followed, but ask a file system."""

_SLEEP, _DEEP_SLEEP = 3, 2
"""TASK_INTERRUPTIBLE or TASK_UNINTERRUPTIBLE, and the latter alone (include/linux/sched.h)."""

_STORAGE = {Op.FSYNC: _SLEEP, STAT: _SLEEP, LIST: _SLEEP, _NOTHING: _SLEEP, Op.OPEN: _DEEP_SLEEP}
"""In which state who sleeps in a call waits for storage, by its op. An open may be of a pipe."""

_CLOSES = ("close", "close_range")
"""Of a socket, too, where the other sleep is for what its peer has not taken yet."""


def syscall_table(*, counts_files: bool) -> bytes:
    """`struct tobs_syscall[SIZE]` for this machine: op + 1 and some arguments for each number."""
    is_x86 = platform.machine() == "x86_64"
    table = bytearray(_ENTRY * SIZE)
    for name, call in {**_CALLS, **_ASIDE, **_UNCOUNTED}.items():
        number = call.x86_64 if is_x86 else call.aarch64
        if number is not None:
            op = call.op if counts_files or name not in _ASIDE else _NOTHING
            storage = _DEEP_SLEEP if name in _CLOSES else _STORAGE.get(call.op, 0)
            entry = bytes([op + 1, call.fd_arg, call.source_arg, call.offset_arg, storage])
            table[_ENTRY * number : _ENTRY * (number + 1)] = entry
    return bytes(table)
