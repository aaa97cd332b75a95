"""What is read of the machine, the workers and the garbage collector, overlaid on the steps."""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from trainobs.core.log import logger
from trainobs.host.counters import Pressure
from trainobs.host.cpu_limits import CpuLimits
from trainobs.host.group import OOM_KILLS, GroupLimits
from trainobs.host.memory import WorkerMemory, own_faults
from trainobs.host.numa import RemoteMemory
from trainobs.host.others import NAME, WINDOW_NS, OthersCpu
from trainobs.host.procfs import PROC
from trainobs.steps.closed_step import ClosedStep
from trainobs.steps.timeline import MAX_POINTS, Columns, Gauges, Spans, StepSource, Totals

WORKERS_NS = 1_000_000_000
"""How often the workers are looked at, at least: it takes some 30 us for each of them."""

_FRESH_NS = 3 * WORKERS_NS


class MachineReadings:
    """Readings of the observer's thread, as columns of the record.

    From construction to `close` the pauses of Python's garbage collector are timed; all else is
    read after `begin`.

    Args:
        tgid: the process that is observed, whose pauses nobody knows, and whose training thread is
            taken for its first one; None: this one, and the calling thread.
    """

    def __init__(self, tgid: int | None = None) -> None:
        self._tgid = tgid
        self._tid = threading.get_native_id() if tgid is None else tgid
        self._pauses = CollectorPauses() if tgid is None else None
        self._host: _HostReadings | None = None

    def begin(self, host: dict[str, object], *, pressure: bool) -> None:
        """Read the machine and the workers, too.

        Args:
            host: facts about the machine, kept true of all of the run: see `CpuLimits`.
            pressure: whether it is read here, and major faults of this process; on the procfs level
                the training thread reads both.
        """
        self._host = _HostReadings(self._tgid, self._tid, host, pressure=pressure)
        self._host.tick()

    def tick(self) -> None:
        """Read what is due; for the observer's thread."""
        if self._host:
            self._host.tick()

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        """See `StepSource`. Totals are read once more, so that they reach to the last step."""
        pauses = self._pauses.columns(steps) if self._pauses else {}
        return pauses | (self._host.columns(steps) if self._host else {})

    def close(self) -> None:
        """Time no more, and close the descriptors. May be called twice."""
        if self._pauses:
            self._pauses.close()
        if self._host:
            self._host.close()


class _HostReadings:
    """All but the pauses: arguments are those of `MachineReadings` and of its `begin`."""

    def __init__(
        self, tgid: int | None, tid: int, host: dict[str, object], *, pressure: bool
    ) -> None:
        self._pressure = Pressure(PROC) if pressure else None
        self._stalls = Totals(self._pressure.names if self._pressure else ())
        self._stalled: tuple[int, list[int]] | None = None
        self._workers = WorkerMemory(tgid)
        self._resident = Gauges(("memory/worker_rss_bytes",), _FRESH_NS)
        self._faults = Totals(("memory/worker_major_fault_count",))
        self._numa = RemoteMemory()
        self._remote = Totals(self._numa.names)
        self._limits = GroupLimits(tgid)
        self._kept = Totals(self._limits.names, ending=(OOM_KILLS,))
        if OOM_KILLS in self._limits.names:
            host["oom_kills_of"] = "machine" if self._limits.kills_of_machine else "control group"
        self._cpus = CpuLimits(host, tgid, tid)
        self._others: OthersCpu | None = OthersCpu(tgid=tgid, tid=tid)
        self._taken = Gauges((NAME,), fresh_ns=3 * WINDOW_NS)
        counts_own = pressure and tgid is None
        self._own_faults = Totals(("memory/major_fault_count",)) if counts_own else None
        self._sources: list[StepSource] = [self._stalls, self._resident, self._faults]
        self._sources += [self._remote, self._kept, self._taken]
        self._sources += [self._own_faults] if self._own_faults else []
        self._next_ns = 0

    def tick(self) -> None:
        if time.monotonic_ns() >= self._next_ns:
            self._read_rare()
        self._read_others()
        self._read_totals()

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        # A step behind the last reading would have none of its own, and the next one all of it.
        self._read_rare()
        self._read_totals()
        return {name: c for source in self._sources for name, c in source.columns(steps).items()}

    def close(self) -> None:
        pressure, self._pressure = self._pressure, None
        if pressure:
            pressure.close()
        self._numa.close()

    def _read_rare(self) -> None:
        """What takes more time to read."""
        now = time.monotonic_ns()
        self._next_ns = now + WORKERS_NS
        resident, faults = self._workers.read()
        self._resident.add(now, (resident,))
        self._faults.add(now, (faults,))
        self._read_numa(now)
        self._read_limits(now)

    def _read_numa(self, now: int) -> None:
        if self._numa.names:
            with suppress(OSError):  # closed meanwhile by another thread: what is known stays so
                self._remote.add(now, self._numa.totals())

    def _read_limits(self, now: int) -> None:
        self._cpus.look()
        if self._limits.names:
            self._kept.add(now, self._limits.totals())

    def _read_others(self) -> None:
        """Where `/proc` does not tell, `sched/others_cpu_ratio` stays null."""
        if self._others is None:
            return
        try:
            reading = self._others.reading()
        except (OSError, ValueError, IndexError) as error:
            self._others = None
            logger.debug("cannot tell what other processes take: %s", error)
            return
        if reading:
            self._taken.add(reading[0], (reading[1],))

    def _read_totals(self) -> None:
        if self._own_faults:
            self._own_faults.add(time.monotonic_ns(), (own_faults(),))
        pressure = self._pressure  # another thread may close it
        if pressure:
            asked_ns = time.monotonic_ns()
            with suppress(OSError):  # closed meanwhile, or gone: what is known stays so
                totals = pressure.totals(asked_ns)
                at_ns = read_at(asked_ns, time.monotonic_ns(), totals, self._stalled)
                self._stalled = at_ns, totals
                self._stalls.add(at_ns, totals)


def read_at(
    asked_ns: int, had_ns: int, totals: Sequence[int], before: tuple[int, Sequence[int]] | None
) -> int:
    """When pressure was read, as far as it tells: it grows no faster than time.

    The thread that reads may wait long for a CPU between its clock and the file. With the time of
    the clock a short step would have all the pressure of that wait.

    Args:
        asked_ns: the clock before it was read.
        had_ns: the clock afterwards.
        totals: what was read, ns.
        before: when, and what, the time before; None: there was none.
    """
    if before is None:
        return asked_ns
    grown = max((now - then for now, then in zip(totals, before[1], strict=True)), default=0)
    return min(max(asked_ns, before[0] + grown), had_ns)


class CollectorPauses:
    """Times every collection from construction to `close` (gc.callbacks).

    What garbage collection calls runs no Python code. It would be the first to run after a signal,
    whose handler then raised inside it, and the interpreter forgets such an exception: a Ctrl-C in
    the middle of a collection would be lost.
    """

    def __init__(self) -> None:
        self._begins: deque[int] = deque(maxlen=MAX_POINTS)
        self._ends: deque[int] = deque(maxlen=MAX_POINTS)
        self._spans = Spans("python/gc_ns", "python/gc_count")
        notes = {"start": _noting(self._begins), "stop": _noting(self._ends)}
        # Called with "start" or "stop" and a dictionary: the name of an attribute, and a default.
        self._told = partial(getattr, type("_Moments", (), notes)())
        gc.callbacks.append(self._told)

    def close(self) -> None:
        """Time no more. May be called twice."""
        if self._told in gc.callbacks:
            gc.callbacks.remove(self._told)

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        """See `StepSource`."""
        while self._ends:
            end_ns, begin_ns = self._ends.popleft(), 0
            while self._begins and self._begins[0] <= end_ns:
                begin_ns = self._begins.popleft()
            if begin_ns:
                self._spans.add(end_ns, end_ns - begin_ns)
        return self._spans.columns(steps)


def _noting(times: deque[int]) -> property:
    """An attribute that adds the time to `times` when it is read, without any Python code."""
    # `next` is called with the object that the attribute is read of, and takes it for a default.
    return property(partial(next, map(times.append, iter(time.monotonic_ns, None))))
