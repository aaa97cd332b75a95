"""The GPU of the training process: which it is, and its readings, overlaid on the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from trainobs.core.log import logger
from trainobs.core.records import RunInfo
from trainobs.core.signals import let_signals_through
from trainobs.gpu.reading import AMOUNT_NAMES, LEVEL_NAMES, Reading
from trainobs.gpu.watch import GpuWatch
from trainobs.steps.clock import StepClock
from trainobs.steps.closed_step import ClosedStep
from trainobs.steps.timeline import Columns, StepSource
from trainobs.steps.windows import Windows

FRESH_NS = 5_000_000_000
"""How long the last reading stands for steps that none was made of."""

NEVER = ""
"""Answer of `Accelerator.uuid` where this process will never use a GPU."""


class Accelerator(Protocol):
    """What the torch side tells of the GPU; all of it is called in the training thread."""

    def uuid(self) -> str | None:
        """The device in use, as CUDA tells its UUID; None for none yet, `NEVER` for never."""

    def mark(self, serial: int, phase: int) -> None:
        """A phase of a step begins, serial as the step clock counts."""

    def ready(self, step: ClosedStep) -> bool:
        """Whether all is known of a closed step; asked by the observer's thread."""

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        """See `trainobs.steps.timeline.StepSource`."""

    def close(self) -> None:
        """Let go of everything; no mark comes any more."""


class AcceleratorWatch:
    """Brings what is known of the GPU to the steps, as soon as the process uses one.

    Args:
        accelerator: the torch side; None for none.
        info: gets `gpu`, what is true of the device for the whole run.

    Attributes:
        sources: for the collector.
        unknown: whether it is worth asking again which GPU the process uses.
    """

    def __init__(self, accelerator: Accelerator | None, info: RunInfo) -> None:
        self._accelerator = accelerator
        self._info = info
        self._clock: StepClock | None = None
        self._uuid: str | None = None if accelerator else NEVER
        self.unknown = accelerator is not None
        self._windows = Windows(LEVEL_NAMES, AMOUNT_NAMES, FRESH_NS)
        self._watch = GpuWatch(self._take)
        self.sources: list[StepSource] = [self._windows, *([accelerator] if accelerator else [])]

    @property
    def cpu_ns(self) -> int:
        """CPU time of the thread that reads the device, so far."""
        return self._watch.cpu_ns

    def attach(self, clock: StepClock) -> None:
        """Have phases marked on this clock, once the process uses a GPU."""
        self._clock = clock

    def ask(self) -> None:
        """Look whether the process uses a GPU by now; for the training thread, while `unknown`."""
        if self._accelerator is None:
            return
        try:
            self._uuid = self._accelerator.uuid()
        except Exception as error:
            let_signals_through()
            self._uuid = NEVER
            logger.debug("the GPU cannot be told: %s", error)
        self.unknown = self._uuid is None
        if self._uuid and self._clock:
            self._clock.on_switch = self._accelerator.mark

    def tick(self) -> None:
        """Begin to read a device that is known now; for the observer's thread, now and then.

        The thread that reads is a child of the observer's, which the probes do not follow.
        """
        if self._uuid:
            self._watch.start(self._uuid)
            self._windows.live = self._watch.alive
            self._info.gpu = {"uuid": self._uuid, **self._watch.about}

    def ready(self, step: ClosedStep) -> bool:
        """Whether nothing more is to come for a closed step."""
        accelerator = self._accelerator
        return self._windows.ready(step) and (accelerator is None or accelerator.ready(step))

    def close(self) -> None:
        """Read and mark no more. May be called twice."""
        if self._clock:
            self._clock.on_switch = None
        self._watch.close()
        self._windows.live = False
        if self._accelerator:
            self._accelerator.close()

    def abandon(self) -> None:
        """In a forked child: let go of the sockets, and of CUDA, which may not be used there."""
        if self._clock:
            self._clock.on_switch = None
        self._watch.abandon()

    def _take(self, reading: Reading) -> None:
        values = [reading.values.get(name, math.nan) for name in (*LEVEL_NAMES, *AMOUNT_NAMES)]
        self._windows.add(reading.begin_ns, reading.end_ns, values)
