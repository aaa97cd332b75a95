"""Reading `/proc`: descriptors that stay open, and the few formats that are needed.

Sources: Documentation/filesystems/proc.rst (`io`, `stat`, `comm`, `children`),
Documentation/scheduler/sched-stats.rst (`schedstat`), Documentation/accounting/psi.rst.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
"""The unit of CPU times and births in `/proc`."""

READ_SIZE = 512
"""Bytes asked for in one read: more than any of the files holds, so one call reads it whole."""


class ProcFile:
    """A `/proc` file whose descriptor stays open; the kernel makes the text anew at each read.

    The descriptor belongs to the process or thread that it was opened for, not to its number:
    after that has ended a read fails with ESRCH, also when the number is in use again.

    Attributes:
        fd: descriptor, opened close-on-exec.
        raw: text of the last read that succeeded.
    """

    __slots__ = ("fd", "raw")

    def __init__(self, path: str) -> None:
        """Opens and reads the file.

        Raises:
            OSError: it does not exist, or this user may not read it.
        """
        self.fd = os.open(path, os.O_RDONLY)
        try:
            self.raw = os.pread(self.fd, READ_SIZE, 0)
        except OSError:
            os.close(self.fd)
            raise

    def alive(self) -> bool:
        """Whether the file can still be read."""
        try:
            os.pread(self.fd, 1, 0)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Closes the descriptor, once."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def keep(path: Path) -> ProcFile | None:
    """A kept file, or None where this machine has no such file or does not let it be read."""
    try:
        return ProcFile(str(path))
    except OSError:
        return None


def own_tgid(proc: Path) -> int:
    """The number by which `/proc` knows this process.

    It is another one than `os.getpid()` where the process is in a PID namespace of its own and
    `/proc` is the one that was mounted outside of it.

    Raises:
        OSError: there is no `/proc`, or it does not show this process.
    """
    return int(os.readlink(proc / "self"))


class Stat(NamedTuple):
    """What is used of `/proc/PID/stat`.

    Attributes:
        name: name of the thread (`comm`).
        parent: tgid of the parent process.
        start_ticks: CLOCK_BOOTTIME at birth, in units of 1/SC_CLK_TCK s.
        major_faults: of all threads, ended ones too.
        resident_pages: pages in memory, to the nearest few dozen of each CPU.
    """

    name: str
    parent: int
    start_ticks: int
    major_faults: int = 0
    resident_pages: int = 0


def parse_stat(raw: bytes) -> Stat:
    """Parses `/proc/PID/stat`; the name may itself hold blanks and brackets."""
    name_end = raw.rindex(b")")
    name = raw[raw.index(b"(") + 1 : name_end].decode(errors="replace")
    fields = raw[name_end + 2 :].split()
    return Stat(name, int(fields[1]), int(fields[19]), int(fields[9]), int(fields[21]))


def number_behind(label: bytes, raw: bytes) -> int:
    """The number between the first `label` and the end of its line."""
    start = raw.index(label) + len(label)
    return int(raw[start : raw.index(b"\n", start)])


def has_room_for_files() -> bool:
    """Whether the process may have so many files open that ours are not missed by others."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= _ROOM


_ROOM = 64
"""With 24, a loader with two workers had enough alone, and not beside what is kept open here."""


def read_bytes(path: str) -> bytes:
    """The content of a small file.

    Two calls fewer than `Path.read_bytes`, for it runs for every thread at every refresh.

    Raises:
        OSError: the process has ended, or this user may not read it.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)


def has_rings(descriptors: Path = PROC / "self" / "fd") -> bool:
    """Whether a descriptor of this process is a ring of io_uring; True where that cannot be seen.

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
