"""The kernel side of a process that may load probes: a set of its own, with one session."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from contextlib import closing

from trainobs.core.abi import FileClass, Op
from trainobs.core.coverage import CALLS, FEEDS, Coverage
from trainobs.probes.backend import ProbeBackend
from trainobs.probes.file_counts import ENTRIES, FileCounts
from trainobs.probes.own_programs import SHARED_MAPS, OwnProbe
from trainobs.probes.programs import PROBES
from trainobs.probes.shared import SharedProbes, unable
from trainobs.probes.statistics import ProbeStatistics

_SLOT = 0


class LocalBackend(ProbeBackend):
    """Loads and attaches the probes on construction; `stop` takes them out again.

    Args:
        probes: names of probes.
        required: whether each of them must work.
        counts_files: whether each file and each peer is counted.

    Raises:
        ProbeError: the kernel side cannot run, or lacks a probe that `required` names.
    """

    def __init__(
        self,
        probes: Collection[str] = tuple(PROBES),
        *,
        required: bool = False,
        counts_files: bool = False,
    ) -> None:
        super().__init__()
        self._probes = SharedProbes(probes, required=required, counts_files=counts_files)
        self.status = self._probes.status
        try:
            with closing(self._probes.open(_SLOT)) as maps:
                self._map(maps.clock_fd, maps.sums_fd)
        except OSError as error:
            self._probes.stop()
            raise unable(error) from error
        except BaseException:
            self._probes.stop()
            raise
        self._statistics = ProbeStatistics(self.program_fds())
        coverage = Coverage(self.status)
        if counts_files and coverage.knows(CALLS):
            ways = {"sent": Op.SEND, "received": Op.RECEIVE}
            unknown = [way for way, op in ways.items() if not coverage.knows(FEEDS[op])]
            self.files = FileCounts(self._probes.maps(ENTRIES), unknown)

    def adopt(self) -> None:
        """Follow the calling process: this thread as the training thread, and all it started."""
        self._probes.adopt(_SLOT, os.getpid(), threading.get_native_id())
        self.own.adopted()

    def leave(self) -> None:
        """Stop following the calling thread."""
        self._probes.leave(_SLOT, os.getpid(), threading.get_native_id())

    def load_own(self, probes: Sequence[OwnProbe]) -> None:
        """Load programs of the user's beside these."""
        self.own.load(probes, self._probes.maps(SHARED_MAPS))
        self._statistics = ProbeStatistics(self.program_fds())

    def infer_data(self, on: bool) -> None:
        """Whether what workers read from regular files of no known class counts as data."""
        self._probes.infer_data(_SLOT, on)

    def program_fds(self) -> dict[str, int]:
        """Descriptors of the programs that run on events."""
        return self._probes.program_fds() | self.own.program_fds()

    def attach_points(self) -> dict[str, str]:
        """Program name -> where it is attached."""
        return {
            name: ", ".join(
                dict.fromkeys(point.removeprefix("tp_btf/") for _, point in points[::-1])
            )
            for name, points in self._probes.attach_points().items()
        }

    def stop(self) -> None:
        """Take the probes out of the kernel; the arrays stay readable. May be called twice."""
        self._release_roots()
        self._overdue_requests += self._probes.overdue_requests(_SLOT)
        if self._statistics:
            self._statistics.stop()
        if self.files:
            self.files.close()
        self.own.close()
        self._probes.stop()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's probes."""
        self._release_roots()
        self.files = None
        self.own.abandon()
        self._probes.abandon()

    def _register_root(self, descriptor: int, file_class: FileClass) -> None:
        self._probes.add_root(_SLOT, descriptor, file_class)
