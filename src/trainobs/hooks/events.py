"""Times of phases on the GPU: events in its stream, looked at later, never waited for.

Where the host begins or leaves a phase that uses the GPU, an event goes into the current stream.
Once the GPU has come past two of them, the time between them is the phase's. All calls of CUDA are
made by the training thread, at its marks: another thread that asks for an event while a CUDA graph
is captured would spoil the capture.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from trainobs.core.abi import Phase
from trainobs.core.log import logger
from trainobs.core.signals import let_signals_through
from trainobs.steps.closed_step import ClosedStep
from trainobs.steps.timeline import Columns

NAMES = {
    Phase.TRANSFER.value: "gpu/transfer_ns",
    Phase.FORWARD.value: "gpu/forward_ns",
    Phase.BACKWARD.value: "gpu/backward_ns",
    Phase.OPTIMIZER.value: "gpu/optimizer_ns",
}
"""Phases that are timed -> their metric."""

MAX_PENDING = 1024
"""Intervals that the GPU has not come past; further ones are not timed."""

_NONE = 2**63


class TimedEvent(Protocol):
    """What is used of `torch.cuda.Event`."""

    def record(self) -> None:
        """Put it into the current stream."""

    def query(self) -> bool:
        """Whether the GPU has come past it."""

    def elapsed_time(self, end_event: TimedEvent) -> float:
        """Milliseconds from this event to a later one, both of which the GPU has come past."""


class _Interval(NamedTuple):
    serial: int
    phase: int
    begin: TimedEvent
    end: TimedEvent
    end_is_a_begin: bool


class PhaseEvents:
    """Events around phases, from a pool.

    `mark` and `close` are for the training thread, the rest for the one that collects.

    Args:
        make: a new event that takes the time.
        capturing: whether a CUDA graph is being captured: then nothing may be asked or timed.
    """

    def __init__(self, make: Callable[[], TimedEvent], capturing: Callable[[], bool]) -> None:
        self._make = make
        self._capturing = capturing
        self._pool: list[TimedEvent] = []
        self._open: tuple[int, int, TimedEvent] | None = None
        self._pending: deque[_Interval] = deque()
        self._times: dict[int, dict[int, float]] = {}
        self._seen: set[int] = set()
        self._spoilt: set[int] = set()
        self._told = -1
        self._unresolved = _NONE
        self._armed = True

    def mark(self, serial: int, phase: int) -> None:
        """A phase of the step with this serial begins, and the one before ends."""
        timed = phase in NAMES
        if not self._armed or not (timed or self._open or self._pending):
            return
        try:
            if self._capturing():
                self._spoil(serial)
            else:
                self._resolve()
                self._turn(serial, phase, timed)
            self._unresolved = self._oldest()
        except Exception as error:
            self._disarm(error)

    def ready(self, step: ClosedStep) -> bool:
        """Whether the GPU is done with the phases of a closed step."""
        return step.serial < self._unresolved

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        """See `trainobs.steps.timeline.StepSource`; NaN for a step that is not known whole."""
        self._told = steps[-1].serial
        known = [self._of_step(step) for step in steps]
        return {
            NAMES[phase]: np.array([np.nan if t is None else t.get(phase, 0.0) for t in known])
            for phase in sorted(self._seen)
        }

    def close(self) -> None:
        """Take what the GPU is done with, and time no more. May be called twice."""
        if self._armed:
            self._armed = False
            try:
                if not self._capturing():
                    self._resolve()
            except Exception as error:
                self._disarm(error)
            self._unresolved = self._pending[0].serial if self._pending else _NONE
            self._pool.clear()

    def _of_step(self, step: ClosedStep) -> dict[int, float] | None:
        """Times by phase; None where none was timed, or some are not known."""
        parts = [self._of(serial) for serial in step.serials]
        known = [part for part in parts if part is not None]
        phases = {phase for part in known for phase in part}
        summed = {phase: sum(part.get(phase, 0.0) for part in known) for phase in phases}
        return summed if summed and len(known) == len(parts) else None

    def _of(self, serial: int) -> dict[int, float] | None:
        times = self._times.pop(serial, {})
        spoilt = serial in self._spoilt
        self._spoilt.discard(serial)
        return None if spoilt or serial >= self._unresolved else times

    def _turn(self, serial: int, phase: int, timed: bool) -> None:
        """End the open interval, begin another one, or both with one event."""
        if timed and len(self._pending) >= MAX_PENDING:
            self._spoil(serial)
            return
        if not timed and self._open is None:
            return
        event = self._pool.pop() if self._pool else self._make()
        event.record()
        if self._open:
            self._pending.append(_Interval(*self._open, event, timed))
        self._open = (serial, phase, event) if timed else None

    def _resolve(self) -> None:
        """Take the times of what the GPU has come past, in its order."""
        while self._pending:
            done = self._pending[0]
            # the end may be in another stream than the begin, and be there first
            if not (done.end.query() and done.begin.query()):
                break
            self._pending.popleft()
            elapsed_ns = max(0.0, done.begin.elapsed_time(done.end) * 1e6)
            if done.serial > self._told:
                times = self._times.setdefault(done.serial, {})
                times[done.phase] = times.get(done.phase, 0.0) + elapsed_ns
                self._seen.add(done.phase)
            self._pool.append(done.begin)
            if not done.end_is_a_begin:
                self._pool.append(done.end)

    def _spoil(self, serial: int) -> None:
        """Of this step, and of the one whose phase is open, not all can be known."""
        self._spoilt.add(serial)
        if self._open:
            self._spoilt.add(self._open[0])
            self._open = None

    def _oldest(self) -> int:
        if self._pending:
            return self._pending[0].serial
        return self._open[0] if self._open else _NONE

    def _disarm(self, error: Exception) -> None:
        let_signals_through()
        self._armed = False
        self._open = None
        self._pending.clear()
        self._pool.clear()
        self._times.clear()
        self._unresolved = _NONE
        logger.debug("phases are timed on the GPU no more: %s", error)
