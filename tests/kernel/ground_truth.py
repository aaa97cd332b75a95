"""What is true without the probes: files of known size, and what of them is in memory."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PAGE = mmap.PAGESIZE
BLOCK = 4096  # of ext4, whatever the pages
MIB = 1 << 20
MAGICS = {"ext4": 0xEF53, "xfs": 0x58465342, "btrfs": 0x9123683E}
"""File system on a disk -> its `statfs::f_type` (include/uapi/linux/magic.h)."""
CACHESTAT = 451  # the same number on all machines

PRIMES = (
    *(4093, 4099, 8191, 8209, 12_289, 16_381, 16_411, 20_479, 32_749, 32_771, 40_961, 65_521),
    *(65_537, 99_991, 100_003, 131_071, 131_101, 150_001, 199_999, 262_139, 262_147, 300_007),
    1_000_003,
)
"""Sizes of 23 files: none is a whole number of pages, or of buffers."""

BUFFER = 65_536

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def overlay(place: Path) -> Iterator[Path]:
    """A file system as containers have it, whose files' generations are all 0."""
    lower, upper, work, merged = (place / name for name in ("lower", "upper", "work", "merged"))
    for directory in (lower, upper, work, merged):
        directory.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, merged], check=True)
    try:
        yield merged
    finally:
        subprocess.run(["umount", merged], check=True)


def rounded(size: int, unit: int = PAGE) -> int:
    """`size` in whole pages, or in other units."""
    return -(-size // unit) * unit


def file_system(path: Path) -> int:
    """`statfs::f_type` of the file system that holds `path`."""
    buffer = (ctypes.c_long * 32)()
    if _libc.statfs(os.fsencode(path), buffer):
        raise OSError(ctypes.get_errno(), f"statfs {path}")
    return int(buffer[0])


def cached_pages(file: Path | int, offset: int = 0, length: int = 0) -> int:
    """Pages of a file in the page cache; `length` 0: up to its end."""
    answer = _cachestat(file, offset, length)
    return _resident_pages(file, offset, length) if answer is None else answer[0]


def reclaimed_pages(file: Path) -> int:
    """Pages of a file that the kernel took out of the page cache to have more free memory.

    Before Linux 6.5 nobody says, and it is 0.
    """
    answer = _cachestat(file, 0, 0)
    return 0 if answer is None else answer[3]


def has_cachestat() -> bool:
    """Whether what is said of the page cache comes from cachestat(2)."""
    return _cachestat(Path(__file__), 0, 0) is not None


def _cachestat(file: Path | int, offset: int, length: int) -> list[int] | None:
    """cachestat(2): pages cached, dirty, in write-back, evicted, evicted of late."""
    if isinstance(file, Path):
        with file.open("rb") as opened:
            return _cachestat(opened.fileno(), offset, length)
    extent, answer = (ctypes.c_uint64 * 2)(offset, length), (ctypes.c_uint64 * 5)()
    if _libc.syscall(CACHESTAT, file, extent, answer, 0):
        if ctypes.get_errno() == errno.ENOSYS:  # before Linux 6.5
            return None
        raise OSError(ctypes.get_errno(), "cachestat")
    return list(answer)


def _resident_pages(file: Path | int, offset: int, length: int) -> int:
    """mincore(2) of a mapping that nobody touches."""
    if isinstance(file, Path):
        with file.open("rb") as opened:
            return _resident_pages(opened.fileno(), offset, length)
    size = os.fstat(file).st_size
    first, end = offset // PAGE, rounded(min(offset + (length or size), size)) // PAGE
    if end <= first:
        return 0
    with mmap.mmap(file, size, mmap.MAP_PRIVATE) as mapped:
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        vector = ctypes.create_string_buffer(end - first)
        span = ctypes.c_size_t((end - first) * PAGE)
        if _libc.mincore(ctypes.c_void_p(address + first * PAGE), span, vector):
            raise OSError(ctypes.get_errno(), "mincore")
    return sum(resident & 1 for resident in vector.raw)


def write_file(path: Path, size: int) -> Path:
    """A file of random bytes, on the disk and out of the page cache."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    evict(path)
    return path


def write_files(directory: Path, sizes: Collection[int] = PRIMES) -> list[Path]:
    """One file of each size."""
    return [write_file(directory / f"{n:03d}.bin", size) for n, size in enumerate(sizes)]


def evict(*paths: Path) -> None:
    """Take files out of the page cache, and see that it is so."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)  # dirty pages would stay
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert cached_pages(fd) == 0, f"{path} stays in the page cache"
        os.close(fd)


@contextmanager
def kept_in_memory(paths: Collection[Path]) -> Iterator[None]:
    """Files that are in the page cache and stay there, even if somebody drops the caches."""
    with ExitStack() as maps:
        for path in paths:
            with path.open("rb") as file:
                flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
                mapping = mmap.mmap(file.fileno(), 0, flags, mmap.PROT_READ)
            maps.enter_context(mapping)
            assert cached_pages(path) * PAGE == rounded(path.stat().st_size)
        yield


def drops() -> str:
    """How often the page cache of this machine was dropped; "" where the kernel does not count."""
    lines = Path("/proc/vmstat").read_text().splitlines()
    return next((line for line in lines if line.startswith("drop_pagecache")), "")


def read_whole(path: Path) -> None:
    """Read a file to its end: `calls_of` calls, the last of which finds no more."""
    fd = os.open(path, os.O_RDONLY)
    while os.read(fd, BUFFER):
        pass
    os.close(fd)


def calls_of(sizes: Collection[int]) -> int:
    """Read calls that `read_whole` makes for files of these sizes."""
    return sum(-(-size // BUFFER) + 1 for size in sizes)


def queued_s() -> float:
    """How long this thread has been ready without a CPU so far."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def sleep_timed(work: Callable[[], object], slept: list[float]) -> Callable[[], None]:
    """`work`, that notes how long this thread slept in it, by clocks other than the probes'."""

    def clock() -> float:
        return time.monotonic() - time.thread_time() - queued_s()

    def timed() -> None:
        before = clock()
        work()
        slept.append(clock() - before)

    return timed
