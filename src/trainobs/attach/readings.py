"""What the observer's thread reads of a process that is observed from outside, beside its steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from trainobs.core.coverage import Coverage
from trainobs.host.procfs import PROC, parse_stat, read_bytes
from trainobs.probes.backend import ProbeBackend
from trainobs.probes.statistics import statistics_for
from trainobs.session.machine import MachineReadings
from trainobs.steps.closed_step import ClosedStep
from trainobs.steps.timeline import Columns, Totals


class OutsideReadings:
    """Stands in for `RunReadings`; also a source of columns.

    Args:
        backend: the kernel side.
        coverage: which counts of it are known.
        tgid: the process.
        host: facts about its machine, which are kept true of all of the run.
    """

    def __init__(
        self, backend: ProbeBackend, coverage: Coverage, tgid: int, host: dict[str, object]
    ) -> None:
        self._backend, self._coverage, self._tgid, self._host = backend, coverage, tgid, host
        self._cpu_ns = time.process_time_ns()
        self._machine = MachineReadings(tgid)
        self._faults = Totals(("memory/major_fault_count",))
        self._statistics = statistics_for(backend.program_fds())

    @property
    def other_cpu_ns(self) -> int:
        """CPU time of the other threads of this process, which is here to observe, so far."""
        return time.process_time_ns() - time.thread_time_ns() - self._cpu_ns

    @property
    def waits_on_host(self) -> Callable[[], bool]:
        """Nobody knows by what the ranks of the job communicate."""
        return lambda: False

    def begin(self) -> None:
        """Begin to read; in the observer's thread."""
        self._machine.begin(self._host, pressure=True)

    def tick(self) -> None:
        """Read what is due."""
        self._machine.tick()
        self._read_faults()

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        """See `StepSource`. Faults are read once more, so that they reach to the last step."""
        self._read_faults()
        return self._machine.columns(steps) | self._faults.columns(steps)

    def lost_count(self) -> int:
        """What the kernel side could not count so far."""
        return sum(self._backend.losses().values())

    def latency(self) -> npt.NDArray[np.uint64] | None:
        """Latency histograms so far, without those that are not known."""
        return self._coverage.histograms(self._backend.histograms)

    def probe_share(self) -> float | None:
        """Share of a CPU that the probes take, sampled now; None where that cannot be told."""
        return self._statistics.share() if self._statistics else None

    def stop(self) -> None:
        """The programs go away."""
        if self._statistics:
            self._statistics.stop()

    def close(self) -> None:
        """Close the descriptors. May be called twice."""
        self._machine.close()

    def _read_faults(self) -> None:
        try:
            raw = read_bytes(f"{PROC}/{self._tgid}/stat")
        except OSError:
            return  # it has ended
        self._faults.add(time.monotonic_ns(), (parse_stat(raw).major_faults,))
