"""The level below eBPF: the same questions, answered from `/proc` without privileges."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from trainobs.host.counters import OwnTime, Pressure, TreeIo, WorkerTime
from trainobs.host.family import FamilyWatch
from trainobs.host.procfs import ProcFile, keep

_IO = ("io/read_bytes", "io/write_bytes", "block/read_bytes", "block/write_bytes")
_OWN = ("sched/main_runqueue_ns", "sched/main_offcpu_ns", "sched/thread_cpu_ns")
_WORKERS = ("sched/worker_runqueue_ns", "sched/worker_offcpu_ns", "sched/worker_cpu_ns")
_PRESSURE = ("pressure/cpu_ns", "pressure/io_ns", "pressure/memory_ns")
_FAULTS = ("memory/major_fault_count",)


class HostSampler:
    """Running totals of the process tree, read at step boundaries.

    Two threads use it: the training thread samples, another one refreshes. The totals start at 0
    when it is opened and never fall.

    Attributes:
        METRICS: catalogue names that it can fill.
        available: those that this machine offers, in the order of `sample`.

    Notes:
        What it cannot see:

        * `io/*`: io_uring, libaio, mapped files, and sockets read by recv, for the kernel counts
          only the read, write and sendfile families there. The sampler's own reads are among
          them: at a sample about 100 bytes for each process, 25 for each thread of a worker.
        * `block/write_bytes` counts pages when they become dirty, also when the file is deleted
          before write-back.
        * File classes, and who did what: these are totals of the tree.
        * Processes of another user count once their parent has waited for them.
        * `sched/worker_*`: workers that torch does not name `pt_data_worker`, and threads that
          live for less than the refresh interval.
        * `sched/thread_cpu_ns` has this library's own threads in it.
        * A worker shows up at the next refresh, with all that it has done by then.
    """

    METRICS: ClassVar[tuple[str, ...]] = _IO + _OWN + _WORKERS + _PRESSURE + _FAULTS

    def __init__(self, proc: Path, own_io: ProcFile) -> None:
        """Use `open`."""
        self._own_io = own_io
        self._watch = FamilyWatch(proc)
        self._io = TreeIo(own_io)
        self._own = OwnTime(proc)
        self._workers = WorkerTime(self._watch)
        self._pressure = Pressure(proc)
        self._closed = False
        self.available = self._names()
        self.refresh()
        self._base = [0] * len(self.available)
        self._base = self._totals()
        self._last = np.zeros(len(self.available), np.int64)

    @classmethod
    def open(cls, proc: Path = Path("/proc")) -> HostSampler | None:
        """Starts counting; call it in the training thread.

        Returns:
            None where `/proc/self/io` cannot be read: then only timing is left.
        """
        own_io = keep(proc / "self" / "io")
        return None if own_io is None else cls(proc, own_io)

    def sample(self) -> npt.NDArray[np.int64]:
        """Totals since `open`, one per name in `available`; for the training thread only.

        After `close` it returns the last totals again.

        Raises:
            OSError: `/proc` itself has gone.
        """
        if not self._closed:
            self._last = np.array(self._totals(), np.int64)
        return self._last

    def refresh(self) -> None:
        """Looks for new and ended processes; for another thread, a few times a second."""
        self._watch.refresh()

    def close(self) -> None:
        """Closes every descriptor. Idempotent, also in a forked child; not during a sample."""
        self._closed = True
        self._watch.close()
        for part in (self._own_io, self._own, self._pressure):
            part.close()

    def _names(self) -> tuple[str, ...]:
        names = _IO + _OWN + _WORKERS if self._own.has_runqueue else _IO + _OWN[1:]
        return names + self._pressure.names + _FAULTS

    def _totals(self) -> list[int]:
        watch = self._watch
        watch.reading = True  # before the family is taken: from here on nothing in it is closed
        family = watch.family
        now = time.monotonic_ns()
        values = self._io.totals(family)
        own = self._own.totals()
        if self._own.has_runqueue:
            values = values + own + self._workers.totals(family, now)
        else:
            values = values + own[1:]
        watch.reading = False
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        values = [*values, *self._pressure.totals(now), faults]
        return [value - base for value, base in zip(values, self._base, strict=True)]
