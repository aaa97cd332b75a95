"""How much of a data set the page cache holds, by cachestat(2) on a sample of its files.

Source: Documentation of cachestat(2) in Linux 6.5 (mm/filemap.c). It neither reads nor touches a
page. Later kernels tell it only to who may write or owns a file.
"""

from __future__ import annotations

import ctypes as C
import os
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trainobs.host.procfs import PAGE_BYTES, PROC

CACHESTAT = 451
"""Number of the system call, on every machine."""

SAMPLE = 512
"""Files that are asked about."""

BUDGET_S = 0.1
"""How long to look for files, and then how long to ask about them."""

_LOCAL = frozenset(
    {"bcachefs", "btrfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "overlay", "squashfs"}
    | {"tmpfs", "vfat", "xfs", "zfs"}
)
"""File systems that answer at once, or not at all; of others (nfs, fuse, ...) nothing is asked."""


class CacheContent(NamedTuple):
    """What was found of a data set.

    Attributes:
        at_ns: CLOCK_MONOTONIC.
        file_count: files found, ...
        is_all: ... and whether these are all.
        sampled_count: files asked about.
        sampled_bytes: their size.
        cached_bytes: of it in the page cache, in whole pages, but no more than the file has.
        dirty_bytes: of it not written back yet.
    """

    at_ns: int
    file_count: int
    is_all: bool
    sampled_count: int
    sampled_bytes: int
    cached_bytes: int
    dirty_bytes: int


class DataSetCache:
    """Asks about the same files each time; they are looked for once.

    Args:
        roots: directories and files of the data set.
        sample: files to ask about, at most.
    """

    def __init__(self, roots: Iterable[Path], sample: int = SAMPLE) -> None:
        self._roots = tuple(dict.fromkeys(roots))
        self._sample = sample
        self._files: list[str] | None = None
        self._found, self._is_all = 0, True
        self._libc = C.CDLL(None, use_errno=True)

    def look(self) -> CacheContent | None:
        """What the page cache holds now; None where no file could be asked about."""
        if self._files is None:
            self._files = self._choose()
        at_ns, until = time.monotonic_ns(), time.monotonic() + BUDGET_S
        count = size = cached = dirty = 0
        for path in self._files:
            if time.monotonic() > until:
                break
            if answer := self._ask(path):
                count += 1
                size += answer[0]
                cached += min(answer[0], answer[1])
                dirty += min(answer[0], answer[2])
        if not count:
            return None
        return CacheContent(at_ns, self._found, self._is_all, count, size, cached, dirty)

    def _choose(self) -> list[str]:
        """A sample of the files, each as likely as any other of those that were found."""
        until, chosen = time.monotonic() + BUDGET_S, random.Random(0)
        sample: list[str] = []
        for path in self._walk():
            if time.monotonic() > until:
                self._is_all = False
                break
            self._found += 1
            if len(sample) < self._sample:
                sample.append(path)
            elif (place := chosen.randrange(self._found)) < self._sample:
                sample[place] = path
        return sample

    def _walk(self) -> Iterator[str]:
        local = _local_mounts()
        found = {os.path.realpath(root) for root in self._roots}
        roots = {root for root in found if _is_local(root, local)}  # some below others that are not
        below = tuple(os.path.join(root, "") for root in roots)
        left = [root for root in roots if root == "/" or not root.startswith(below)]
        linked: set[str] = set()
        while left:
            path = left.pop()
            try:
                entries = os.scandir(path)
            except NotADirectoryError:
                yield path
                continue
            except OSError:  # gone, or not ours to see
                self._is_all = False
                continue
            with entries:
                for entry in entries:
                    with suppress(OSError):
                        if entry.is_dir(follow_symlinks=False):
                            left.append(entry.path)
                        elif entry.is_file(follow_symlinks=False):
                            yield entry.path
                        elif entry.is_file():
                            real = os.path.realpath(entry.path)
                            if real in linked or real in roots or real.startswith(below):
                                continue  # found without the link
                            linked.add(real)
                            if _is_local(real, local):
                                yield real

    def _ask(self, path: str) -> tuple[int, int, int] | None:
        """Size, and of it cached and dirty, in bytes; None where the kernel does not tell."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            extent, answer = (C.c_uint64 * 2)(0, 0), (C.c_uint64 * 5)()
            if self._libc.syscall(CACHESTAT, descriptor, extent, answer, 0):
                return None
            return os.fstat(descriptor).st_size, answer[0] * PAGE_BYTES, answer[1] * PAGE_BYTES
        finally:
            os.close(descriptor)


def _local_mounts() -> list[tuple[str, bool]]:
    """Mount points, longest first, and whether a local file system is there."""
    found = []
    with suppress(OSError):
        for line in (PROC / "self" / "mountinfo").read_text(errors="surrogateescape").splitlines():
            front, _, behind = line.partition(" - ")
            point = front.split(" ")[4].encode().decode("unicode_escape", errors="replace")
            found.append((point, behind.split(" ")[0] in _LOCAL))
    return sorted(found, key=lambda one: -len(one[0]))


def _is_local(path: str, mounts: list[tuple[str, bool]]) -> bool:
    for point, is_local in mounts:
        if path == point or path.startswith(os.path.join(point, "")):
            return is_local
    return False
