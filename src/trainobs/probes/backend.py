"""The kernel side as one session sees it, whoever has loaded the programs."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import SUMS, FileClass
from trainobs.core.files import close_all
from trainobs.probes.file_counts import FileCounts
from trainobs.probes.map_entries import mapping
from trainobs.probes.mounts import mount_points, mounts_below
from trainobs.probes.own_programs import OwnProbe, OwnPrograms, OwnTables
from trainobs.probes.session_maps import CLOCK_BYTES
from trainobs.probes.statistics import ProbeStatistics

KEPT_ROOTS = 256
"""Roots whose descriptors stay open."""

Words = npt.NDArray[np.uint64]


class ProbeBackend:
    """What a session writes and reads; subclasses ask the programs, by one way or another.

    Attributes:
        clock: the step word, writable, as a memoryview of unsigned 64-bit words.
        rows: step rows as the kernel counts them, shape (RING, op, class, role); they only grow.
        touched: cells that have grown in any of these, shape (op, class, role) of bytes.
        latency: block-read latency of each step of the ring, shape (RING, BUCKETS).
        batches: ring of the batches that loaders made, shape (BATCHES,) of `BATCH`.
        histograms: latency since the session began, shape (op, class, role, BUCKETS).
        status: program name -> "on", or why it is off.
        own: programs of the user's beside these.
        slot: of the session, in the probes that these are.
        files: what was read and written of each file; None where that is not counted.
    """

    slot = 0
    clock: memoryview
    rows: npt.NDArray[np.void]
    touched: npt.NDArray[np.uint8]
    latency: Words
    batches: npt.NDArray[np.void]
    histograms: Words
    status: dict[str, str]

    def __init__(self) -> None:
        self.own = OwnPrograms()
        self.files: FileCounts | None = None
        self._kept: list[int] = []
        self._statistics: ProbeStatistics | None = None
        self._overdue_requests = 0

    def _map(self, clock_fd: int, sums_fd: int) -> None:
        self.clock = memoryview(mapping(clock_fd, CLOCK_BYTES, writable=True)).cast("Q")
        sums = np.frombuffer(mapping(sums_fd, SUMS.itemsize), SUMS, 1)[0]
        self.rows = sums["rows"]
        self.touched = sums["touched"]
        self.latency = sums["step_latency"]
        self.batches = sums["batches"]
        self.histograms = sums["histograms"]
        self._losses = sums["losses"]

    def adopt(self) -> None:
        """Follow the calling process: this thread as the training thread, and all it started."""
        raise NotImplementedError

    def leave(self) -> None:
        """Stop following the calling thread."""
        raise NotImplementedError

    def load_own(self, probes: Sequence[OwnProbe]) -> None:
        """Load programs of the user's, as far as that is possible here; tells of what is not."""
        raise NotImplementedError

    def own_tables(self) -> OwnTables | None:
        """What programs of the user's count for this session; None if there are none."""
        return self.own.of(self.slot)

    def infer_data(self, on: bool) -> None:
        """Whether what workers read from regular files of no known class counts as data."""
        raise NotImplementedError

    def program_fds(self) -> dict[str, int]:
        """Descriptors of the programs that run on events, where this process has them."""
        raise NotImplementedError

    def attach_points(self) -> dict[str, str]:
        """Program name -> where it is attached, where this process has loaded it."""
        return {}

    def stop(self) -> None:
        """End the session in the kernel; the arrays stay readable. May be called twice."""
        raise NotImplementedError

    def abandon(self) -> None:
        """In a forked child: let go of the parent's session."""
        raise NotImplementedError

    def _register_root(self, descriptor: int, file_class: FileClass) -> None:
        raise NotImplementedError

    def gone_since_ns(self) -> int | None:
        """CLOCK_MONOTONIC from which on nothing may have been counted; None: all is counted."""
        return None

    def losses(self) -> dict[str, int]:
        """What the kernel side could not count, since the session began.

        `runs` of programs that the kernel left out, where anybody tells. Once it has stopped,
        `requests` has those that never ended.
        """
        losses = {name: int(self._losses[name]) for name in self._losses.dtype.names or ()}
        losses["requests"] += self._overdue_requests
        if self._statistics:
            losses["runs"] = self._statistics.missed_runs()
        return losses

    def add_root(self, path: Path, file_class: FileClass) -> None:
        """Give a class to everything below a directory, or to one file; the nearest root decides.

        Raises:
            OSError: the path cannot be opened, or the kernel side has no room for it.
        """
        self.add_roots([path], file_class)

    def add_roots(self, paths: Iterable[Path], file_class: FileClass) -> None:
        """Do what `add_root` does for many paths, at less cost; one that fails stops no other.

        Raises:
            OSError: the first fault met, which names its path.
        """
        points = mount_points()
        faults: list[OSError] = []
        for path in paths:
            try:
                self._add_tree(path, points, file_class)
            except OSError as error:
                faults.append(error)
        if faults:
            raise faults[0]

    def _add_tree(self, path: Path, points: Sequence[str], file_class: FileClass) -> None:
        """A mount point below a root is a root of its own, since the walk up ends at a mount."""
        self._add_root(path, file_class, keep=os.path.realpath(path) not in points)
        for place in mounts_below(path, points):
            self._add_root(place, file_class, keep=False)

    def _add_root(self, path: Path, file_class: FileClass, *, keep: bool) -> None:
        """Tell the kernel of a root, and keep it open.

        A root is known by its inode number, and overlayfs gives another one to a directory that it
        forgot when memory was short. It forgets none that is open, and no mount point; one of those
        is not kept, since it could not be unmounted.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            before = self.losses()["classes"]
            self._register_root(descriptor, file_class)
            if self.losses()["classes"] != before:
                raise OSError(errno.ENOSPC, "the kernel side has no room for more roots", str(path))
            if keep and len(self._kept) < _keepable():
                self._kept.append(descriptor)
                descriptor = -1
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _release_roots(self) -> None:
        kept, self._kept = self._kept, []
        close_all(kept)


def _keepable() -> int:
    """Roots to keep open: the training needs descriptors as well, and may have few."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return KEPT_ROOTS if soft == resource.RLIM_INFINITY else min(KEPT_ROOTS, soft // 8)
