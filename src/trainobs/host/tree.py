"""Which processes descend from this one.

Two ways with the same answer. `ChildrenFileFinder` reads `/proc/PID/task/TID/children` and costs
what the tree holds; kernels without CONFIG_PROC_CHILDREN (and gVisor) lack that file, and there
`ParentScanFinder` reads `/proc/*/stat` and costs what the machine holds.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from trainobs.host.procfs import parse_stat, read_bytes

SCAN_REST = 50
"""A scan of all processes is followed by a pause of this many times what it took: 2 % of a CPU."""


class DescendantFinder(Protocol):
    """A way to find descendants."""

    def descendants(self, root: int) -> list[int] | None:
        """Tgids below `root`, every parent before its children; None: too early to look again."""
        ...


def find_tree(proc: Path) -> DescendantFinder:
    """The cheapest way that this kernel offers."""
    return (
        ChildrenFileFinder(proc)
        if (proc / "thread-self" / "children").exists()
        else ParentScanFinder(proc)
    )


def thread_ids(proc: Path, tgid: int) -> list[str]:
    """Threads of a process; none when it has ended or may not be looked at."""
    try:
        return os.listdir(f"{proc}/{tgid}/task")
    except OSError:
        return []


def _below(root: int, children: Callable[[int], Iterable[int]]) -> list[int]:
    """All descendants, every parent before its children."""
    found: list[int] = []
    level = [root]
    while level:
        level = [child for tgid in level for child in children(tgid)]
        found += level
    return found


class ChildrenFileFinder:
    """Follows `/proc/PID/task/TID/children`.

    Notes:
        The kernel may skip a child when another one ends during the read; the next look finds it.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc

    def descendants(self, root: int) -> list[int]:
        """See `DescendantFinder`."""
        return _below(root, self._children)

    def _children(self, tgid: int) -> Iterable[int]:
        # A child belongs to the thread that forked it, so each thread has a list of its own.
        for tid in thread_ids(self._proc, tgid):
            try:
                yield from map(int, read_bytes(f"{self._proc}/{tgid}/task/{tid}/children").split())
            except OSError:
                continue  # the thread has ended; its children are on another one's list now


class ParentScanFinder:
    """Reads the parent of every process of the machine."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._next_ns = 0

    def descendants(self, root: int) -> list[int] | None:
        """See `DescendantFinder`."""
        began = time.monotonic_ns()
        if began < self._next_ns:
            return None
        found = _below(root, self._children().__getitem__)
        self._next_ns = began + SCAN_REST * (time.monotonic_ns() - began)
        return found

    def _children(self) -> defaultdict[int, list[int]]:
        children: defaultdict[int, list[int]] = defaultdict(list)
        for entry in filter(str.isdigit, os.listdir(self._proc)):
            try:
                parent = parse_stat(read_bytes(f"{self._proc}/{entry}/stat")).parent
            except OSError:
                continue  # ended since the listing
            children[parent].append(int(entry))
        return children
