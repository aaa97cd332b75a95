"""What the observer reads of the machine and the workers now and then, laid over the steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from trainobs.host.counters import Pressure
from trainobs.host.memory import WorkerMemory
from trainobs.host.numa import RemoteMemory
from trainobs.host.procfs import PROC
from trainobs.steps.clock import ClosedStep
from trainobs.steps.timeline import Columns, Gauges, Totals

WORKERS_NS = 1_000_000_000
"""How often the workers are looked at: it takes some 30 us for each of them."""

_FRESH_NS = 3 * WORKERS_NS


class MachineReadings:
    """Readings of the observer's thread, as columns of the record.

    Args:
        pressure: whether pressure is read here; on the procfs level the training thread does it.
    """

    def __init__(self, *, pressure: bool) -> None:
        self._pressure = Pressure(PROC) if pressure else None
        self._stalls = Totals(self._pressure.names if self._pressure else ())
        self._workers = WorkerMemory()
        self._resident = Gauges(("memory/worker_rss_bytes",), _FRESH_NS)
        self._faults = Totals(("memory/worker_major_fault_count",))
        self._numa = RemoteMemory()
        self._remote = Totals(self._numa.names)
        self._next_ns = 0
        self.tick()

    def tick(self) -> None:
        """Look at the workers, if that is due; for the observer's thread."""
        now = time.monotonic_ns()
        if now >= self._next_ns:
            self._next_ns = now + WORKERS_NS
            resident, faults = self._workers.read()
            self._resident.add(now, (resident,))
            self._faults.add(now, (faults,))
            self._read_numa(now)
        self._read_pressure()

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        """See `StepSource`. Pressure is read once more, so that it reaches to the last step."""
        self._read_pressure()
        sources = (self._stalls, self._resident, self._faults, self._remote)
        return {name: c for source in sources for name, c in source.columns(steps).items()}

    def close(self) -> None:
        """Close the descriptors. May be called twice."""
        pressure, self._pressure = self._pressure, None
        if pressure:
            pressure.close()
        self._numa.close()

    def _read_numa(self, now: int) -> None:
        if self._numa.names:
            with suppress(OSError):  # closed meanwhile by another thread: what is known stays so
                self._remote.add(now, self._numa.totals())

    def _read_pressure(self) -> None:
        pressure = self._pressure  # another thread may close it
        if pressure:
            now = time.monotonic_ns()
            with suppress(OSError):  # closed meanwhile, or gone: what is known stays so
                self._stalls.add(now, pressure.totals(now))
