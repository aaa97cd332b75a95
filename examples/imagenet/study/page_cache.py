"""Files in and out of the page cache, and how much of them is there, all without root.

POSIX_FADV_DONTNEED takes a file's clean pages out of the page cache. It leaves:

* pages that are dirty or being written (so files are sent to the disk first), that a process has
  mapped or locked; ``resident_ratio`` shows them
* inodes and directory entries, so that opening a file reads nothing from the disk even when its
  content is cold; only root may drop these
* caches below this kernel: of the disk itself, and of a host under a virtual machine
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BLOCK_BYTES = 1 << 20
CACHESTAT = 451  # its number on every architecture, since Linux 6.5
PAGE_BYTES = mmap.PAGESIZE

_libc = ctypes.CDLL(None, use_errno=True)


def files_in(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield all files below a folder, with their sizes in bytes; links are followed."""
    for folder, _, names in os.walk(root, followlinks=True):
        for name in names:
            path = Path(folder, name)
            yield path, path.stat().st_size


def evict(files: Iterable[Path]) -> None:
    """Take files out of the page cache."""
    for path in files:
        with opened(path) as descriptor:
            with suppress(OSError):  # some file systems that are read-only refuse
                os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def read_through(files: Iterable[Path]) -> None:
    """Read files, so that the page cache has them as far as memory goes."""
    block = bytearray(BLOCK_BYTES)
    for path in files:
        with opened(path) as descriptor:
            while os.readv(descriptor, [block]):
                pass


def resident_ratio(files: Iterable[tuple[Path, int]]) -> float | None:
    """Share of the pages of files, given with their sizes, that the page cache holds.

    None: the kernel does not tell this user.

    Source: cachestat (mm/filemap.c); mincore on kernels before 6.5.
    """
    held = total = 0
    for path, size in files:
        total += -(-size // PAGE_BYTES)
        with opened(path) as descriptor:
            pages = resident_pages(descriptor, size)
        if pages is None:
            return None
        held += pages
    return held / total if total else None


def resident_pages(descriptor: int, size: int) -> int | None:
    """Pages of an open file that are in the page cache; None where the kernel does not tell."""
    try:
        return by_cachestat(descriptor)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            return None
    # Of a file that somebody else owns mincore says that all of it is there.
    return by_mincore(descriptor, size) if is_own(descriptor) else None


def is_own(descriptor: int) -> bool:
    """Whether the user of this process owns a file, or may do everything."""
    return os.geteuid() in (0, os.fstat(descriptor).st_uid)


class _Range(ctypes.Structure):
    """``struct cachestat_range`` of linux/mman.h; a length of 0 is to the end of the file."""

    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Stat(ctypes.Structure):
    """``struct cachestat`` of linux/mman.h, pages."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("cache", "dirty", "writeback", "evicted", "recently_evicted")
    )


def by_cachestat(descriptor: int) -> int:
    """Pages in the page cache, as the kernel counts them."""
    whole, found = _Range(0, 0), _Stat()
    if _libc.syscall(CACHESTAT, descriptor, ctypes.byref(whole), ctypes.byref(found), 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(found.cache)


def by_mincore(descriptor: int, size: int) -> int:
    """The same by mapping the file and asking for its pages."""
    if not size:
        return 0
    _libc.mmap.restype = ctypes.c_void_p
    address = _libc.mmap(
        None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0
    )
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    pages = (ctypes.c_ubyte * -(-size // PAGE_BYTES))()
    where, length = ctypes.c_void_p(address), ctypes.c_size_t(size)
    failed = _libc.mincore(where, length, pages)
    number = ctypes.get_errno()
    _libc.munmap(where, length)
    if failed:
        raise OSError(number, os.strerror(number))
    return sum(page & 1 for page in pages)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor of a file, open for reading."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
