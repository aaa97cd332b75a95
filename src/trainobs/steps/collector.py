"""The collector: takes closed steps off the clock and joins them with the kernel's rows."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice, repeat
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import RING, FileClass, Op, Phase
from trainobs.core.catalogue import kernel_metrics, named_phase_metric, phase_metric
from trainobs.core.cells import StepCells, Words
from trainobs.core.coverage import BLOCK, FEEDS, Async, Coverage
from trainobs.core.histogram import percentile
from trainobs.core.metrics import Cells, Formulas
from trainobs.core.records import StepTable
from trainobs.steps.closed_step import ClosedStep, ClosedSteps
from trainobs.steps.ledger import Ledger
from trainobs.steps.lookup_source import LookupSource, NoLookups
from trainobs.steps.ring import KernelRows, Ring, Taken, joined
from trainobs.steps.timeline import StepSource

SETTLE_NS = 5_000_000
"""Age at which nothing more is in flight for a closed step: far above the time of one probe."""

MAX_WAITING = 64 * RING
"""Steps kept while the observer's thread is held up, 2 KB each; above, the oldest are dropped and
counted. On a busy machine its first flush, which imports pyarrow, took as long as 3,000 of 1 ms."""

HOLD_NS = 3_000_000_000
"""How long a step is kept back for what is known late only: the readings of a GPU."""

HELD = RING
"""Steps kept back at most; where steps are so short, nothing belongs to one of them alone."""

_ASYNC_CALLS = {
    Async.URING: Cells("count", (Op.URING_ENTER,)),
    Async.AIO: Cells("count", (Op.AIO,)),
}

_MAPPED_WRITES = Cells("count", (Op.MAP_WRITE,), (FileClass.CHECKPOINT,))
"""That a checkpoint is mapped to be written: from then on, calls do not tell what is written."""

_Part = tuple[ClosedSteps, Taken | None]


class OwnRows(Protocol):
    """What it reads of programs of the user's."""

    @property
    def tables(self) -> list[Words]:
        """Rows of each program, shape (RING, n); they only grow."""

    def columns(self, grown: Sequence[Words], count: int) -> dict[str, npt.NDArray[np.float64]]:
        """What was counted in some steps, by metric, from what each table grew in each step."""
        ...


class ReadClock(Protocol):
    """What the collector asks of a step clock; `StepClock` says what each of it is."""

    closed: deque[bytes]
    over: bool
    on_cancel: Callable[[int, int], None] | None

    @property
    def measured(self) -> Collection[int]:
        """Phases that are timed."""

    @property
    def named(self) -> Sequence[str]:
        """Names of the phases that have one of the user's."""

    @property
    def serial(self) -> int:
        """Serial of the step that the kernel counts for."""


def _slowest(latency: Words) -> npt.NDArray[np.float64]:
    """The 99th percentile of each step; most have no request, and so none."""
    slowest = np.full(len(latency), np.nan)
    has_some = latency.any(axis=1)
    if has_some.any():
        slowest[has_some] = percentile(latency[has_some], 0.99)
    return slowest


class Collector:
    """Copies rows out of the ring before it comes round, and makes records of them.

    Rows only grow, so a step's counts are the difference to what its slot held before. `collect`
    may run in the training thread (when the ring is nearly full) and in the observer's.

    Args:
        coverage: what of the kernel's rows is known.
        rings: whether there were rings of io_uring before the run began.
        own: what programs of the user's count.
        unknown: metrics of the kernel side that say nothing of this run.

    Attributes:
        waiting_count: steps that were collected, and not yet taken by `table`.
        dropped_steps: steps that were dropped because nobody took them.
        late_count: events that count in a later step than they happened in.
    """

    def __init__(
        self,
        clock: ReadClock,
        kernel: KernelRows | None,
        *,
        coverage: Coverage | None = None,
        rings: bool = False,
        own: OwnRows | None = None,
        host_names: tuple[str, ...] = (),
        switch_cost_ns: float = 0.0,
        sources: Sequence[StepSource] = (),
        ledger: Ledger | None = None,
        lookups: LookupSource | None = None,
        ready: Callable[[ClosedStep], bool] = lambda step: True,
        unknown: Collection[str] = (),
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.dropped_steps = 0
        self.late_count = 0
        self._clock = clock
        self._host_names = host_names
        self._switch_cost_ns = switch_cost_ns
        self._sources = tuple(sources)
        self._ledger = ledger or Ledger()
        self._last = False  # whether no step will follow those of the last `table`
        self._lookups = lookups or NoLookups()
        self._ready = ready
        self._now = now
        self._lock = threading.Lock()
        self._waiting: list[_Part] = []
        self.waiting_count = 0
        self._last_totals: npt.NDArray[np.float64] | None = None
        self._kernel = kernel
        self._coverage = coverage or Coverage.whole()
        known = [m for m in kernel_metrics() if m.name not in unknown]
        self._metrics = [m for m in known if self._coverage.knows(m.programs)]
        self._formulas = Formulas(self._metrics)
        sums = {m.name: m.formula for m in self._metrics if isinstance(m.formula, Cells)}
        self._phases = {name: cells.phases for name, cells in sums.items() if cells.phases}
        self._used = np.uint8(Async.URING if rings else 0)
        self._maps = False  # whether a checkpoint has been mapped to be written
        self._own = own
        self._ring = None if kernel is None else Ring(kernel, own.tables if own else ())
        self._unchecked: list[int] = []
        self._carried: dict[int, list[Taken]] = {}
        clock.on_cancel = self._carry

    def collect(self, *, settle: bool = True) -> None:
        """Copy the rows of closed steps, except one that is so fresh that adds are in flight."""
        with self._lock:
            steps = self._settled(settle)
            self._ledger.read()  # after the steps are known, so that their batches are there
            if not steps:
                return
            try:
                taken = self._copy_rows(self._ring, steps) if self._ring else None
            except BaseException:  # a signal's, in the training thread: what was copied is gone
                self._accept(steps)
                self._drop(steps, None)
                raise
            # Only now, since what is on `closed` makes a fast loop wait for its rows to be copied.
            self._accept(steps)
            self._waiting.append((steps, taken))
            while self.waiting_count > MAX_WAITING:
                self._drop(*self._waiting.pop(0))

    def table(self, *, hold: bool = False) -> StepTable | None:
        """Records of what was collected since the last call; None for nothing.

        Args:
            hold: keep back the steps of which more will soon be known.
        """
        with self._lock:
            count = self._ready_parts() if hold else len(self._waiting)
            waiting, self._waiting = self._waiting[:count], self._waiting[count:]
            self.waiting_count -= sum(len(part[0]) for part in waiting)
            self._last = self._clock.over and not self._clock.closed and not self._waiting
        if not waiting:
            return None
        steps = ClosedSteps.joined(steps for steps, _ in waiting)
        taken = [taken for _, taken in waiting if taken]
        if not taken:
            return self._assemble(steps, None)
        return self._assemble(steps, joined(taken))

    def _ready_parts(self) -> int:
        """How many of the parts that wait need not wait any longer."""
        now, left = self._now(), self.waiting_count
        for count, (steps, _) in enumerate(self._waiting):
            young = now - steps[-1].end_ns < HOLD_NS
            if left <= HELD and young and not self._is_ready(steps[-1]):
                return count
            left -= len(steps)
        return len(self._waiting)

    def _is_ready(self, step: ClosedStep) -> bool:
        return self._ready(step) and self._lookups.ready(step)

    def _accept(self, steps: ClosedSteps) -> None:
        self.waiting_count += len(steps)
        closed = self._clock.closed
        for _ in repeat(None, min(len(steps), len(closed))):  # it may have been given up meanwhile
            closed.popleft()

    def _drop(self, steps: ClosedSteps, taken: Taken | None) -> None:
        if taken:
            self._async_used(taken[0])
        self.waiting_count -= len(steps)
        self.dropped_steps += len(steps)
        if self._host_names:
            self._last_totals = np.array(steps[-1].totals, np.float64)

    def _settled(self, settle: bool) -> ClosedSteps:
        closed = self._clock.closed
        count = len(closed)
        if settle and count and self._now() - ClosedStep(closed[count - 1]).end_ns < SETTLE_NS:
            count -= 1
        return ClosedSteps(islice(closed.copy(), count))  # another thread adds to it

    def _copy_rows(self, ring: Ring, steps: ClosedSteps) -> Taken:
        serials = steps.serial.tolist()
        (cells, tables), late = ring.take(serials, at_rest := self._at_rest())
        # What came later than its step was copied counts in the slot's next step, if that has not
        # begun meanwhile.
        now = self._clock.serial
        pairs = zip(at_rest, late, strict=True)
        self.late_count += sum(count for serial, count in pairs if now < serial + RING)
        several = dict(steps.merges)
        for index, serial in enumerate(serials if several or self._carried else ()):
            merged = several.get(index, ())
            more = [ring.take([one])[0] for one in merged]
            for one in (*merged, serial):
                more += self._carried.pop(one, ())
            for more_cells, more_tables in more:
                cells = cells.plus(index, more_cells)
                for table, more_rows in zip(tables, more_tables, strict=True):
                    table[index] += more_rows[0]
        self._unchecked += serials
        return cells, tables

    def _at_rest(self) -> list[int]:
        """Serials of steps that were copied half a ring ago, each of them once."""
        due = self._clock.serial - RING // 2
        count = bisect_right(self._unchecked, due)
        at_rest, self._unchecked = self._unchecked[:count], self._unchecked[count:]
        return at_rest

    def _carry(self, cancelled: int, serial: int) -> None:
        """Keep what the kernel counted in a step that was none for the step that goes on."""
        self._ledger.carry(cancelled, serial)
        if self._ring:
            with self._lock:
                taken, _ = self._ring.take([cancelled])
            self._carried.setdefault(serial, []).append(taken)

    def _assemble(self, steps: ClosedSteps, taken: Taken | None) -> StepTable:
        columns = self._timings(steps)
        columns.update(self._host_deltas(steps))
        for source in self._sources:
            columns.update(source.columns(steps))
        cells, latency = None, None
        if taken:
            cells, (latency, *own) = taken
            if self._own:
                columns.update(self._own.columns(own, len(steps)))
            used = self._async_used(cells)
            columns.update(self._kernel_columns(steps, cells, latency, used))
            cells = self._coverage.known(cells, used)
            latency = latency if self._coverage.knows(BLOCK) else None
        reads_known = not self._used & self._coverage.doubts(FEEDS[Op.URING_READ])
        of_batches, batches = self._ledger.close(steps, last=self._last, reads_known=reads_known)
        if Phase.LOADER.value in self._clock.measured:
            columns.update(of_batches)
        return StepTable(
            step=steps.step,
            epoch=steps.epoch.astype(np.int32),
            start_ns=steps.start_ns,
            columns=columns,
            cells=cells,
            latency=latency,
            batches=batches,
            lookups=self._lookups.rows(steps),
        )

    def _async_used(self, cells: StepCells) -> npt.NDArray[np.uint8]:
        """Of each step, which ways of I/O past the calls may have been used until its end."""
        ways = [(calls.total(cells) > 0) * np.uint8(way) for way, calls in _ASYNC_CALLS.items()]
        used: npt.NDArray[np.uint8] = np.bitwise_or.accumulate(np.bitwise_or(*ways)) | self._used
        self._used = used[-1]
        return used

    def _kernel_columns(
        self,
        steps: ClosedSteps,
        cells: StepCells,
        latency: Words,
        used: npt.NDArray[np.uint8],
    ) -> dict[str, npt.NDArray[np.float64]]:
        columns = self._formulas.evaluate(cells)
        for metric in self._metrics if used.any() else ():
            columns[metric.name][used & self._coverage.doubts(metric.programs) > 0] = np.nan
        mapped = np.logical_or.accumulate(_MAPPED_WRITES.total(cells) > 0) | self._maps
        self._maps = bool(mapped[-1])
        if self._maps and "io/checkpoint_write_bytes" in columns:
            columns["io/checkpoint_write_bytes"][mapped] = np.nan
        if self._coverage.knows(BLOCK):
            columns["block/read_p99_ns"] = _slowest(latency)
        for name, phases in self._phases.items():
            if phases.isdisjoint(self._clock.measured):
                del columns[name]
        gone_since_ns = self._kernel.gone_since_ns() if self._kernel else None
        if gone_since_ns is not None:  # what nobody counted is unknown, not zero
            counted = steps.end_ns < gone_since_ns
            columns = {name: np.where(counted, values, np.nan) for name, values in columns.items()}
        return columns

    def _timings(self, steps: ClosedSteps) -> dict[str, npt.NDArray[np.float64]]:
        phases = steps.phase_ns.astype(np.float64)
        measured = sorted(self._clock.measured)
        width = phases.shape[1]
        none = np.zeros(len(steps))  # of a phase that got its name since
        columns = {
            self._phase_metric(phase): phases[:, phase] if phase < width else none
            for phase in measured
        }
        columns["step/duration_ns"] = phases.sum(axis=1)
        if Phase.OTHER.value in measured:  # what was in a phase that nobody knows is in none
            unknown = [phase for phase in range(width) if phase not in measured]
            columns[phase_metric(Phase.OTHER)] += phases[:, unknown].sum(axis=1)
        columns["obs/cpu_ns"] = steps.switches.astype(np.float64) * self._switch_cost_ns
        return columns

    def _phase_metric(self, phase: int) -> str:
        if phase < len(Phase):
            return phase_metric(Phase(phase))
        return named_phase_metric(self._clock.named[phase - len(Phase)])

    def _host_deltas(self, steps: ClosedSteps) -> dict[str, npt.NDArray[np.float64]]:
        if not self._host_names:
            return {}
        totals = steps.totals
        before = totals[:1] * 0 if self._last_totals is None else self._last_totals[None]
        self._last_totals = totals[-1]
        deltas = np.diff(totals, axis=0, prepend=before)
        return {name: deltas[:, i] for i, name in enumerate(self._host_names)}
