"""What the probes themselves cost, from the kernel's own BPF statistics."""

from __future__ import annotations

import ctypes as C
import os
import struct
import time
from collections.abc import Callable, Mapping

from trainobs.core.errors import ProbeError
from trainobs.probes.libbpf import open_library
from trainobs.probes.programs import AGAIN

_RUN_TIME = 0  # enum bpf_stats_type: BPF_STATS_RUN_TIME
_INFO_BYTES = 232  # struct bpf_prog_info up to and including run_cnt and what follows in v5.12
_RUN_TIME_OFFSET = 192  # bpf_prog_info::run_time_ns, ...
_RUN_COUNT_OFFSET = 200  # ... then run_cnt, ...
_MISSES_OFFSET = 208  # ... then recursion_misses


class ProbeStatistics:
    """Samples the share of CPU time that runs inside some programs.

    The statistics cost a clock read or two for each run of a program, so they are on only while
    `share` samples. They need CAP_SYS_ADMIN.

    Args:
        program_fds: descriptors of the programs, by name.
    """

    def __init__(self, program_fds: Mapping[str, int]) -> None:
        self._library = open_library()
        self._program_fds = tuple(program_fds.values())
        self._last_fds = [fd for name, fd in program_fds.items() if name + AGAIN not in program_fds]
        self._missed_runs = 0
        self._stopped = False

    def stop(self) -> None:
        """The programs go away: ask once more, and never again, for others may get the numbers."""
        self.missed_runs()
        self._stopped = True

    def share(
        self, window_s: float = 0.05, sleep: Callable[[float], object] = time.sleep
    ) -> float | None:
        """CPU time in the programs per wall time, over all CPUs.

        An upper bound: what the statistics themselves cost is inside. None where it is not allowed,
        and where the programs went away, also while they were sampled.
        """
        if self._stopped:
            return None
        switch = self._library.bpf_enable_stats(_RUN_TIME)
        if switch < 0:
            return None
        try:
            before, begin = self.run_times(), time.monotonic_ns()
            sleep(window_s)
            if self._stopped:
                return None
            spent, took = sum(self.run_times()) - sum(before), time.monotonic_ns() - begin
            return spent / took if took else None  # who tests a training may have stopped its clock
        finally:
            os.close(switch)

    def run_times(self) -> list[int]:
        """Time in each program since the statistics were first on, ns (bpf_prog_info)."""
        return [self._counter(descriptor, _RUN_TIME_OFFSET) for descriptor in self._program_fds]

    def run_counts(self) -> list[int]:
        """How often each has run since the statistics were first on (bpf_prog_info)."""
        return [self._counter(descriptor, _RUN_COUNT_OFFSET) for descriptor in self._program_fds]

    def missed_runs(self) -> int:
        """Events at which the kernel left a program out, until the programs were stopped.

        It does so where an event interrupts the same program on the same CPU
        (bpf_prog_info::recursion_misses; for `tp_btf` since Linux 6.1). Of programs that are there
        twice (bpf/preemption.h) those of the second one, of which the first may have counted some.
        """
        if not self._stopped:
            counters = (self._counter(each, _MISSES_OFFSET) for each in self._last_fds)
            self._missed_runs = max(self._missed_runs, sum(counters))
        return self._missed_runs

    def _counter(self, descriptor: int, offset: int) -> int:
        info = C.create_string_buffer(_INFO_BYTES)
        size = C.c_uint32(_INFO_BYTES)
        if self._library.bpf_obj_get_info_by_fd(descriptor, info, C.byref(size)):
            return 0
        return int(struct.unpack_from("Q", info.raw, offset)[0])


def statistics_for(program_fds: Mapping[str, int]) -> ProbeStatistics | None:
    """Statistics of some programs, or None where there are none or libbpf cannot be asked."""
    if not program_fds:  # they are the service's: a share of zero would be wrong
        return None
    try:
        return ProbeStatistics(program_fds)
    except ProbeError:
        return None
