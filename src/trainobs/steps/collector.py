"""The collector: takes closed steps off the clock and joins them with the kernel's rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainobs.core.histogram import percentile
from trainobs.core.kernel import BUCKETS, CELL, CELLS_SHAPE, RING, Phase
from trainobs.core.metrics import evaluate, kernel_metrics, phase_metric
from trainobs.core.records import StepBatch
from trainobs.steps.clock import ClosedStep, StepClock

SETTLE_NS = 5_000_000
"""Age at which nothing more is in flight for a closed step: far above the time of one probe."""

MAX_WAITING = 4096
"""Steps kept for slow sinks; above, the oldest are dropped and counted."""

_WORDS = len(CELL.names or ()) * int(np.prod(CELLS_SHAPE))


class KernelRows(Protocol):
    """What the collector reads of the kernel side."""

    rows: npt.NDArray[np.void]
    latency: npt.NDArray[np.uint64]


class Collector:
    """Copies rows out of the ring before it comes round, and makes records of them.

    Rows only grow, so a step's counts are the difference to what its slot held before. `collect`
    may run in the training thread (when the ring is nearly full) and in the observer's.
    """

    def __init__(
        self,
        clock: StepClock,
        kernel: KernelRows | None,
        *,
        host_names: tuple[str, ...] = (),
        switch_cost_ns: float = 0.0,
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.dropped_steps = 0
        self.late_count = 0
        self._clock = clock
        self._host_names = host_names
        self._switch_cost_ns = switch_cost_ns
        self._now = now
        self._lock = threading.Lock()
        self._waiting: list[tuple[list[ClosedStep], npt.NDArray | None, npt.NDArray | None]] = []
        self._waiting_count = 0
        self._last_totals: npt.NDArray[np.float64] | None = None
        self._rows: npt.NDArray[np.uint64] | None = None
        if kernel is not None:
            self._rows = kernel.rows.view("<u8").reshape(RING, _WORDS)
            self._latency = kernel.latency
            self._seen_rows = np.zeros_like(self._rows)
            self._seen_latency = np.zeros_like(self._latency)

    def collect(self, *, settle: bool = True) -> None:
        """Copy the rows of closed steps, except one that is so fresh that adds are in flight."""
        with self._lock:
            steps = self._take(settle)
            if not steps:
                return
            rows, latency = self._copy_rows(steps) if self._rows is not None else (None, None)
            self._waiting.append((steps, rows, latency))
            self._waiting_count += len(steps)
            while self._waiting_count > MAX_WAITING:
                dropped = len(self._waiting.pop(0)[0])
                self._waiting_count -= dropped
                self.dropped_steps += dropped

    def batches(self) -> list[StepBatch]:
        """Records of what was collected since the last call."""
        with self._lock:
            waiting, self._waiting, self._waiting_count = self._waiting, [], 0
        return [self._assemble(*part) for part in waiting]

    def _take(self, settle: bool) -> list[ClosedStep]:
        closed = self._clock.closed
        count = len(closed)
        if settle and count and self._now() - closed[count - 1].end_ns < SETTLE_NS:
            count -= 1
        return [closed.popleft() for _ in range(count)]

    def _copy_rows(
        self, steps: list[ClosedStep]
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        self._count_late(steps)
        slots = [step.serial % RING for step in steps]
        rows, latency = self._rows[slots], self._latency[slots]
        counts, buckets = rows - self._seen_rows[slots], latency - self._seen_latency[slots]
        self._seen_rows[slots], self._seen_latency[slots] = rows, latency
        return counts, buckets

    def _count_late(self, steps: list[ClosedStep]) -> None:
        """Adds that came after their step was copied: they will count in the slot's next step.

        Looked for half a ring later, in slots that no step uses at the moment.
        """
        half, current = RING // 2, self._clock.serial
        slots = [s.serial % RING - half for s in steps if half < s.serial and current < s.serial + half]
        counts = slice(None, None, len(CELL.names or ()))
        grown = self._rows[slots, counts] - self._seen_rows[slots, counts]
        self.late_count += int(grown.sum())

    def _assemble(
        self,
        steps: list[ClosedStep],
        rows: npt.NDArray[np.uint64] | None,
        latency: npt.NDArray[np.uint64] | None,
    ) -> StepBatch:
        columns = self._timings(steps)
        columns.update(self._host_deltas(steps))
        cells = None
        if rows is not None and latency is not None:
            cells = rows.view(CELL).reshape(len(steps), *CELLS_SHAPE)
            for metric in kernel_metrics():
                columns[metric.name] = evaluate(metric, cells)
            columns["block/read_p99_ns"] = percentile(latency, 0.99)
        return StepBatch(
            step=np.array([step.step for step in steps], np.int64),
            epoch=np.array([step.epoch for step in steps], np.int32),
            start_ns=np.array([step.start_ns for step in steps], np.int64),
            columns=columns,
            cells=cells,
            latency=latency,
        )

    def _timings(self, steps: list[ClosedStep]) -> dict[str, npt.NDArray[np.float64]]:
        phases = np.array([step.phase_ns for step in steps], np.float64)
        columns = {phase_metric(phase): phases[:, phase] for phase in Phase}
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
