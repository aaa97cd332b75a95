"""The kernel side of a process that is observed from outside: it does nothing for it itself."""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection
from contextlib import closing
from functools import partial

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import SEEN, FileClass
from trainobs.probes.backend import ProbeBackend
from trainobs.probes.compiling import OBJECTS
from trainobs.probes.detach import detach
from trainobs.probes.extra import ExtraObject
from trainobs.probes.map_entries import mapping
from trainobs.probes.own_programs import SHARED_MAPS, OwnPrograms
from trainobs.probes.shared import SharedProbes, unable
from trainobs.probes.statistics import ProbeStatistics

FUNCTIONS = {
    "tobs_backward": "_ZN5torch8autograd6Engine7execute",
    "tobs_named": "_ZN5torch8autograd8profiler25record_function_enter_new",
    "tobs_ended": (
        "_ZNO3c106IValue13toCustomClassIN5torch8autograd8profiler20PythonRecordFunctionEE"
    ),
}
"""Program of bpf/seen.bpf.c -> begin of the compiled name of the function of torch that it is for.

The last one is a template. Two libraries of torch may hold it, of which the linker takes the first.
"""


def seen_object(probes: SharedProbes, programs: Collection[str]) -> ExtraObject:
    """Some programs of bpf/seen.bpf.c, beside probes.

    Raises:
        ProbeError: the kernel side cannot run.
    """
    file = OBJECTS / f"seen.{platform.machine()}.bpf.o"
    name = "what sees a process from outside"
    return ExtraObject([file], probes.maps(SHARED_MAPS), name, programs)


class AttachedBackend(ProbeBackend):
    """One process, in a slot of probes that others may share.

    Args:
        probes: the probes.
        slot: a free one of theirs.
        tgid: the process, as this one sees it.
        own: programs of the user's beside them, which whoever made them closes.

    Attributes:
        seen: `struct tobs_seen`, shape (1,), writable: what the process does, and when it begins a
            step.

    Raises:
        ProbeError: the kernel side cannot run.
    """

    seen: npt.NDArray[np.void]

    def __init__(
        self, probes: SharedProbes, slot: int, tgid: int, own: OwnPrograms | None = None
    ) -> None:
        super().__init__()
        self._probes, self.slot, self._tgid = probes, slot, tgid
        self.own = own or self.own
        self.status = probes.status
        self._programs = seen_object(probes, FUNCTIONS)
        self._end: list[Callable[[], None]] = [self._programs.close]
        try:
            with closing(probes.open(slot)) as maps:
                self._end.insert(0, partial(probes.close, slot))
                self._map(maps.clock_fd, maps.sums_fd)
            memory = mapping(self._programs.map_fd("seen_process"), SEEN.itemsize, writable=True)
        except OSError as error:
            self.stop()
            raise unable(error) from error
        self.seen = np.frombuffer(memory, SEEN, 1)
        self._statistics = ProbeStatistics(self.program_fds())

    def follow(self, tid: int) -> bool:
        """Follow the process and all that it started; False if it has no such thread (any more).

        This process, which it may have started, is left out.

        Args:
            tid: its training thread, as it sees itself.
        """
        is_there = self._probes.adopt(self.slot, self._tgid, tid)
        detach()
        return is_there

    def see(self, program: str, file: str, offset: int) -> None:
        """Run a program of `FUNCTIONS` whenever the process comes to a place in its libtorch.

        Raises:
            ProbeError: the kernel refuses.
        """
        self._programs.attach_uprobe(program, file, offset, pid=self._tgid)

    def infer_data(self, on: bool) -> None:
        """Whether what workers read from regular files of no known class counts as data."""
        self._probes.infer_data(self.slot, on)

    def program_fds(self) -> dict[str, int]:
        """Descriptors of the programs that run on events."""
        ours = self._probes.program_fds() | self._programs.program_fds()
        return ours | self.own.program_fds()

    def stop(self) -> None:
        """End the session in the kernel; the arrays stay readable. May be called twice."""
        self._release_roots()
        if self._end:
            self._overdue_requests += self._probes.overdue_requests(self.slot)
        if self._statistics:
            self._statistics.stop()
        while self._end:
            self._end.pop()()

    def _register_root(self, descriptor: int, file_class: FileClass) -> None:
        self._probes.add_root(self.slot, descriptor, file_class)
