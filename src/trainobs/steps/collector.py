"""The collector: takes closed steps off the clock and joins them with the kernel's rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainobs.core.catalogue import kernel_metrics, phase_metric
from trainobs.core.histogram import percentile
from trainobs.core.kernel import CELL, CELLS_SHAPE, FIELDS, RING, Phase
from trainobs.core.metrics import evaluate
from trainobs.core.records import StepBatch
from trainobs.steps.clock import ClosedStep, StepClock
from trainobs.steps.ledger import Ledger
from trainobs.steps.timeline import StepSource

SETTLE_NS = 5_000_000
"""Age at which nothing more is in flight for a closed step: far above the time of one probe."""

MAX_WAITING = 1024
"""Steps kept for slow sinks, 26 KB each; above, the oldest are dropped and counted."""

HOLD_NS = 3_000_000_000
"""How long a step is kept back for what is known late only: the readings of a GPU."""

HELD = MAX_WAITING // 8
"""Steps kept back at most; where steps are so short, nothing belongs to one of them alone."""

_WORDS = len(FIELDS) * int(np.prod(CELLS_SHAPE))


Words = npt.NDArray[np.uint64]

_NO_ROWS = (np.empty((0, 0), np.uint64), np.empty((0, 0), np.uint64))


_Part = tuple[list[ClosedStep], Words, Words]


class KernelRows(Protocol):
    """What the collector reads of the kernel side; both only grow."""

    rows: npt.NDArray[np.void]
    latency: Words

    def gone_since_ns(self) -> int | None:
        """CLOCK_MONOTONIC from which on nothing may have been counted; None: all is counted."""


class _Ring:
    """The kernel's ring of step rows, and what it held when each slot was read last."""

    def __init__(self, kernel: KernelRows) -> None:
        self._now = (kernel.rows.view("<u8").reshape(RING, _WORDS), kernel.latency)
        self._seen = tuple(np.zeros_like(array) for array in self._now)

    def take(self, slots: list[int]) -> tuple[Words, Words]:
        """Growth of some slots since they were taken last: (rows, latency)."""
        grown = []
        for now, seen in zip(self._now, self._seen, strict=True):
            values = now[slots]
            grown.append(values - seen[slots])
            seen[slots] = values
        return grown[0], grown[1]

    def late(self, slots: list[int]) -> list[int]:
        """Events in each of some slots that should have been at rest."""
        counts = slice(None, None, len(FIELDS))
        grown = self._now[0][slots, counts] - self._seen[0][slots, counts]
        return [int(count) for count in grown.sum(axis=1)]


class Collector:
    """Copies rows out of the ring before it comes round, and makes records of them.

    Rows only grow, so a step's counts are the difference to what its slot held before. `collect`
    may run in the training thread (when the ring is nearly full) and in the observer's.

    Attributes:
        waiting_count: steps that were collected, and not yet taken by `batch`.
        dropped_steps: steps that were dropped because nobody took them.
        late_count: events that count in a later step than they happened in.
    """

    def __init__(
        self,
        clock: StepClock,
        kernel: KernelRows | None,
        *,
        host_names: tuple[str, ...] = (),
        switch_cost_ns: float = 0.0,
        sources: Sequence[StepSource] = (),
        ledger: Ledger | None = None,
        ready: Callable[[ClosedStep], bool] = lambda step: True,
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.dropped_steps = 0
        self.late_count = 0
        self._clock = clock
        self._host_names = host_names
        self._switch_cost_ns = switch_cost_ns
        self._sources = tuple(sources)
        self._ledger = ledger or Ledger()
        self._last = False  # whether no step will follow those of the last `batch`
        self._ready = ready
        self._now = now
        self._lock = threading.Lock()
        self._waiting: list[_Part] = []
        self.waiting_count = 0
        self._last_totals: npt.NDArray[np.float64] | None = None
        self._kernel = kernel
        self._ring = None if kernel is None else _Ring(kernel)
        self._unchecked: list[int] = []
        self._carried: dict[int, list[tuple[Words, Words]]] = {}
        clock.on_cancel = self._carry

    def collect(self, *, settle: bool = True) -> None:
        """Copy the rows of closed steps, except one that is so fresh that adds are in flight."""
        with self._lock:
            steps = self._settled(settle)
            self._ledger.read()  # after the steps are known, so that their batches are there
            if not steps:
                return
            rows, latency = self._copy_rows(self._ring, steps) if self._ring else _NO_ROWS
            # Only now, since what is on `closed` makes a fast loop wait for its rows to be copied.
            for _ in steps:
                self._clock.closed.popleft()
            self._waiting.append((steps, rows, latency))
            self.waiting_count += len(steps)
            while self.waiting_count > MAX_WAITING:
                self._drop(self._waiting.pop(0)[0])

    def batch(self, *, hold: bool = False) -> StepBatch | None:
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
        steps, rows, latency = zip(*waiting, strict=True)
        return self._assemble(
            list(chain.from_iterable(steps)), np.concatenate(rows), np.concatenate(latency)
        )

    def _ready_parts(self) -> int:
        """How many of the parts that wait need not wait any longer."""
        now, left = self._now(), self.waiting_count
        for count, (steps, _, _) in enumerate(self._waiting):
            young = now - steps[-1].end_ns < HOLD_NS
            if left <= HELD and young and not self._ready(steps[-1]):
                return count
            left -= len(steps)
        return len(self._waiting)

    def _drop(self, steps: list[ClosedStep]) -> None:
        self.waiting_count -= len(steps)
        self.dropped_steps += len(steps)
        if self._host_names:
            self._last_totals = np.array(steps[-1].totals, np.float64)

    def _settled(self, settle: bool) -> list[ClosedStep]:
        closed = self._clock.closed
        count = len(closed)
        if settle and count and self._now() - closed[count - 1].end_ns < SETTLE_NS:
            count -= 1
        return [closed[index] for index in range(count)]

    def _copy_rows(self, ring: _Ring, steps: list[ClosedStep]) -> tuple[Words, Words]:
        self._count_late(ring)
        serials = [step.serial for step in steps]
        rows, latency = ring.take([serial % RING for serial in serials])
        for index, serial in enumerate(serials):
            for more_rows, more_latency in self._carried.pop(serial, ()):
                rows[index] += more_rows
                latency[index] += more_latency
        self._unchecked += serials
        return rows, latency

    def _carry(self, cancelled: int, serial: int) -> None:
        """Keep what the kernel counted in a step that was none for the step that goes on."""
        self._ledger.carry(cancelled, serial)
        if self._ring:
            with self._lock:
                rows, latency = self._ring.take([cancelled % RING])
            self._carried.setdefault(serial, []).append((rows[0], latency[0]))

    def _count_late(self, ring: _Ring) -> None:
        """Count adds that came after their step was copied: they count in the slot's next step.

        Looked for half a ring later, and only in slots whose next step has not begun meanwhile.
        """
        due = self._clock.serial - RING // 2
        at_rest = [serial for serial in self._unchecked if serial <= due]
        self._unchecked = [serial for serial in self._unchecked if serial > due]
        late = ring.late([serial % RING for serial in at_rest])
        now = self._clock.serial
        pairs = zip(at_rest, late, strict=True)
        self.late_count += sum(count for serial, count in pairs if now < serial + RING)

    def _assemble(self, steps: list[ClosedStep], rows: Words, latency: Words) -> StepBatch:
        columns = self._timings(steps)
        columns.update(self._host_deltas(steps))
        for source in self._sources:
            columns.update(source.columns(steps))
        of_batches, batches = self._ledger.close(steps, last=self._last)
        if Phase.LOADER.value in self._clock.measured:
            columns.update(of_batches)
        cells = None
        if self._ring:
            cells = rows.view(CELL).reshape(len(steps), *CELLS_SHAPE)
            columns.update(self._kernel_columns(steps, cells, latency))
        return StepBatch(
            step=np.array([step.step for step in steps], np.int64),
            epoch=np.array([step.epoch for step in steps], np.int32),
            start_ns=np.array([step.start_ns for step in steps], np.int64),
            columns=columns,
            cells=cells,
            latency=latency if self._ring else None,
            batches=batches,
        )

    def _kernel_columns(
        self, steps: list[ClosedStep], cells: npt.NDArray[np.void], latency: Words
    ) -> dict[str, npt.NDArray[np.float64]]:
        columns = {metric.name: evaluate(metric, cells) for metric in kernel_metrics()}
        columns["block/read_p99_ns"] = percentile(latency, 0.99)
        gone_since_ns = self._kernel.gone_since_ns() if self._kernel else None
        if gone_since_ns is not None:  # what nobody counted is unknown, not zero
            counted = np.array([step.end_ns for step in steps]) < gone_since_ns
            columns = {name: np.where(counted, values, np.nan) for name, values in columns.items()}
        return columns

    def _timings(self, steps: list[ClosedStep]) -> dict[str, npt.NDArray[np.float64]]:
        phases = np.array([step.phase_ns for step in steps], np.float64)
        measured = (Phase(phase) for phase in sorted(self._clock.measured))
        columns = {phase_metric(phase): phases[:, phase] for phase in measured}
        columns["step/duration_ns"] = phases.sum(axis=1)
        switches = np.array([step.switches for step in steps], np.float64)
        columns["obs/cpu_ns"] = switches * self._switch_cost_ns
        return columns

    def _host_deltas(self, steps: list[ClosedStep]) -> dict[str, npt.NDArray[np.float64]]:
        if not self._host_names:
            return {}
        totals = np.array([step.totals for step in steps], np.float64)
        before = totals[:1] * 0 if self._last_totals is None else self._last_totals[None]
        self._last_totals = totals[-1]
        deltas = np.diff(totals, axis=0, prepend=before)
        return {name: deltas[:, i] for i, name in enumerate(self._host_names)}
