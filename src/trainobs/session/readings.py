"""What the observer's thread reads of a run, beside its steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from trainobs.core.coverage import Coverage
from trainobs.host.sampler import HostSampler
from trainobs.probes.backend import ProbeBackend
from trainobs.probes.statistics import statistics_for
from trainobs.session.accelerator import AcceleratorWatch
from trainobs.session.file_watch import FileWatch
from trainobs.session.machine import MachineReadings
from trainobs.steps.ledger import Ledger


class RunReadings:
    """Brings together the parts of a run that the observer's thread asks.

    Args:
        kernel: the kernel side, or None.
        coverage: which counts of it are known.
        host: the counters of `/proc`, where they stand in for system calls.
        gpu: of the training process.
        machine: readings of the machine and the workers.
        ledger: of the batches, some of which it may lose.
        files: what is read of them, where that is counted.
        waits_on_host: whether the training thread sleeps while it waits for other ranks.
    """

    def __init__(
        self,
        kernel: ProbeBackend | None,
        coverage: Coverage,
        *,
        host: HostSampler | None,
        gpu: AcceleratorWatch,
        machine: MachineReadings,
        ledger: Ledger,
        files: FileWatch | None,
        waits_on_host: Callable[[], bool],
    ) -> None:
        self.waits_on_host = waits_on_host
        self._kernel = kernel
        self._coverage = coverage
        self._host = host
        self._gpu = gpu
        self._machine = machine
        self._ledger = ledger
        self._files = files
        self._statistics = statistics_for(kernel.program_fds()) if kernel else None
        self._stopped = False

    @property
    def other_cpu_ns(self) -> int:
        """CPU time of other threads of the run so far."""
        return self._gpu.cpu_ns

    def begin(self) -> None:
        """Run first in the observer's thread: the kernel side follows it no more."""
        if self._kernel:
            self._kernel.leave()

    def tick(self) -> None:
        """Read what is due."""
        if self._kernel:
            self._kernel.gone_since_ns()  # what a service counted is known until it was seen last
        if self._host:
            self._host.refresh()
        self._machine.tick()
        if self._files:
            self._files.tick()
        if not self._stopped:
            self._gpu.tick()

    def lost_count(self) -> int:
        """What the kernel side could not count so far."""
        if self._kernel is None:
            return 0
        return sum(self._kernel.losses().values()) + self._ledger.lost_count

    def latency(self) -> npt.NDArray[np.uint64] | None:
        """Latency histograms so far, without those that are not known; None below eBPF."""
        return self._coverage.histograms(self._kernel.histograms) if self._kernel else None

    def probe_share(self) -> float | None:
        """Share of a CPU that the probes take, sampled now; None where that cannot be told."""
        return self._statistics.share() if self._statistics else None

    def stop(self) -> None:
        """The programs go away, and the GPU is let go of."""
        self._stopped = True
        if self._statistics:
            self._statistics.stop()
