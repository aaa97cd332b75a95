"""The observer thread: the only one that writes what is observed."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import RING
from trainobs.core.errors import what_to_do
from trainobs.core.log import logger
from trainobs.core.now import now_s
from trainobs.core.records import RunInfo, StepTable
from trainobs.core.sink import Sink
from trainobs.runlog.writer import SEAL_STEPS
from trainobs.session.delivery import SinkDispatcher
from trainobs.steps.collector import Collector

BEGIN_S = 5.0
"""How long a run waits for the thread, so that a short one does not end before it, and the next
one finds that its directory is taken."""

SLOWER, COMPUTES = 4, 0.01
"""How many times as long as for a disk that hangs a run waits at its end for a thread that still
computes, and the share of the time that it has to compute."""

WAKE_S = 0.25
"""How often the thread looks for closed steps, unless it is woken, and reads the machine."""

FLUSH_S = 5.0
"""How often it makes records of closed steps, and the sinks make them safe: what a killed run loses
at most. Each delivery has a price, whatever its steps."""

HAND_OVER_S = 1.0
"""How often it makes records where what the sinks are handed outlives the training."""

COST_S = 10.0
"""How often the cost of the probes is sampled."""

COST_SAMPLES = 5
"""Samples of which the median counts."""

DELIVERED_STEPS = SEAL_STEPS
"""Collected steps that are delivered sooner than that; more than `MAX_WAITING` would be lost. They
fill a part of the run log, so that most are encoded once."""

FULL = RING // 2
"""Closed steps at which the training thread wakes the observer."""


class Readings(Protocol):
    """What the observer's thread reads beside steps; `RunReadings` says what each of it is."""

    @property
    def waits_on_host(self) -> Callable[[], bool]:
        """Whether the training thread sleeps while it waits for other ranks."""

    @property
    def other_cpu_ns(self) -> int:
        """CPU time of other threads of the run so far."""

    def begin(self) -> None:
        """Run first in the observer's thread."""

    def tick(self) -> None:
        """Read what is due."""

    def lost_count(self) -> int:
        """What the kernel side could not count so far."""

    def latency(self) -> npt.NDArray[np.uint64] | None:
        """Latency histograms so far."""

    def probe_share(self) -> float | None:
        """Share of a CPU that the probes take."""


class Observer:
    """Collects closed steps, completes their records and hands them to the sinks.

    Args:
        info: of the run, for the sinks.
        collector: of its steps.
        deliveries: to the sinks.
        readings: what completes the record; read every `WAKE_S`.

    Attributes:
        gave_up: whether a fault has ended the observation; the training goes on.
    """

    def __init__(
        self,
        info: RunInfo,
        collector: Collector,
        deliveries: SinkDispatcher,
        readings: Readings,
    ) -> None:
        self._info = info
        self._collector = collector
        self._deliveries = deliveries
        self._readings = readings
        self._shares: deque[float] = deque(maxlen=COST_SAMPLES)
        self._told_lost = 0
        self._told_cpu_ns = 0
        self._next_tick = 0.0
        self._next_cost = 0.0
        self._next_delivery = 0.0  # at once: what it imports is not to meet the first flush's
        self._next_flush = now_s() + FLUSH_S
        self._begun = threading.Event()
        self._ended = threading.Event()
        self._wake = threading.Event()
        self._stopping = self.gave_up = False
        self._summary: dict[str, object] = {}
        self._more_sinks: deque[Sink] = deque()
        self._thread = threading.Thread(target=self._run, name="trainobs", daemon=True)

    def start(self) -> None:
        """Start the thread; returns when it and the sinks have begun, unless a disk hangs."""
        self._thread.start()
        self._begun.wait(BEGIN_S)

    def add_sinks(self, sinks: Iterable[Sink]) -> None:
        """Have more sinks take the steps that close from now on."""
        self._more_sinks.extend(sinks)

    def wake(self) -> None:
        """Have closed steps collected now."""
        self._wake.set()

    def abandon(self) -> None:
        """In a forked child, which does not have the thread."""
        self._deliveries.abandon()

    def give_up(self, error: Exception) -> None:
        """Tell of a fault, and have the record end here, with what was collected until then."""
        if self.gave_up:
            return
        self.gave_up = True
        self._summary["outcome"] = f"given up: {type(error).__name__}"
        logger.warning(
            "cannot go on observing; the training goes on\n  found: the fault below\n  do:    %s",
            what_to_do(error),
            exc_info=error,
        )
        self._wake.set()

    def stop(self, summary: dict[str, object], timeout_s: float = 30.0) -> None:
        """Deliver what is left and end the thread.

        A disk that hangs must not hang the training: after `timeout_s` the thread is left behind,
        unless it computes, as on a slow CPU; then after at most `SLOWER` times as long.
        """
        self._summary = summary | self._summary
        self._stopping = True
        self._wake.set()
        if self._thread.ident is None:  # never started; or it has not run yet, and ends at once
            return
        # Not join, which does not wait a second time if a signal handler raised in the first.
        begun_s = now_s()
        for _ in range(SLOWER):
            used = self._cpu_s()
            if self._ended.wait(timeout_s):
                self._thread.join()
                return
            if self._cpu_s() - used < COMPUTES * timeout_s:
                break
        logger.warning(
            "cannot finish the run log\n  found: the sinks did not return within %.0f s\n"
            "  do:    look at the file system that holds it; what was flushed is readable",
            now_s() - begun_s,
        )

    def _cpu_s(self) -> float:
        """CPU time of the thread; 0 where nobody knows."""
        with suppress(OSError, ValueError):
            text = Path(f"/proc/self/task/{self._thread.native_id}/schedstat").read_text()
            return int(text.split()[0]) / 1e9
        return 0.0

    def _run(self) -> None:
        try:
            if self._stopping:  # a signal came while it was started
                return
            self._enter()
            self._deliveries.prepare()
            while not self._stopping and not self.gave_up:
                self._wake.wait(WAKE_S)
                self._wake.clear()
                self._round()
            self._finish()
        except Exception as error:
            self.give_up(error)
            with suppress(Exception):  # what fails again was told of
                self._deliver()
            with suppress(Exception):
                self._end()
        finally:
            self._ended.set()

    def _enter(self) -> None:
        try:
            self._readings.begin()
            self._deliveries.begin(self._info)
        finally:
            self._begun.set()

    def _round(self) -> None:
        self._collector.collect()
        self._deliveries.poll()
        now = now_s()
        if now >= self._next_tick:
            self._next_tick = now + WAKE_S
            self._readings.tick()
        due = min(self._next_delivery, self._next_flush)
        if now < due and self._collector.waiting_count < DELIVERED_STEPS:
            return
        if self._deliveries.is_full:
            return
        self._next_delivery = now + (HAND_OVER_S if self._deliveries.survives else FLUSH_S)
        if now >= self._next_cost and not self._stopping:
            self._next_cost = now + COST_S
            self._sample_cost()
        self._deliveries.start()
        self._deliver(hold=True)
        if now >= self._next_flush:
            self._next_flush = now + FLUSH_S
            self._flush()

    def _sample_cost(self) -> None:
        """A probe that loses its CPU to the hypervisor looks dear, hence the median of a few."""
        share = self._readings.probe_share()
        if share is not None:
            self._shares.append(share)

    def _deliver(self, *, hold: bool = False) -> None:
        self._begin_more()
        table = self._collector.table(hold=hold)
        if table:
            self._deliveries.write(self._with_cost(table))

    def _begin_more(self) -> None:
        while self._more_sinks:
            self._deliveries.add(self._more_sinks.popleft())

    def _with_cost(self, table: StepTable) -> StepTable:
        columns = dict(table.columns)
        if not self._readings.waits_on_host():
            columns.pop("ranks/wait_ns", None)
        cpu_ns = time.thread_time_ns() + self._readings.other_cpu_ns
        columns["obs/cpu_ns"] = columns["obs/cpu_ns"] + (cpu_ns - self._told_cpu_ns) / len(table)
        self._told_cpu_ns = cpu_ns
        if self._shares:
            columns["obs/probe_ns"] = columns["step/duration_ns"] * np.median(self._shares)
        lost = self._readings.lost_count() + self._collector.dropped_steps
        columns["obs/lost_count"] = np.zeros(len(table))
        columns["obs/lost_count"][-1] = lost - self._told_lost
        self._told_lost = lost
        return replace(table, columns=columns)

    def _flush(self) -> None:
        self._hand_latency()
        self._deliveries.flush()

    def _hand_latency(self) -> None:
        buckets = self._readings.latency()
        if buckets is not None:
            self._deliveries.latency(buckets)

    def _finish(self) -> None:
        self._collector.collect(settle=False)
        self._deliver()
        self._end()

    def _end(self) -> None:
        self._hand_latency()
        self._summary["late_count"] = self._collector.late_count
        self._summary["dropped_steps"] = self._collector.dropped_steps
        self._deliveries.end(self._summary)
