"""The GPU that torch uses, and the time of phases on it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainobs.hooks.events import PhaseEvents
from trainobs.session.accelerator import NEVER
from trainobs.steps.closed_step import ClosedStep
from trainobs.steps.timeline import Columns


class Cuda:
    """What torch knows of the GPU; see `trainobs.session.accelerator.Accelerator`.

    Never begins CUDA by itself, and never waits for it. A loop that does without torch does not
    load it.

    Notes:
        Of several devices that one process uses, it is the current one of the training thread.
    """

    def __init__(self) -> None:
        self._events: PhaseEvents | None = None

    def uuid(self) -> str | None:
        """UUID of the current device; None until the process has begun to use CUDA."""
        torch = sys.modules.get("torch")
        if torch is None:
            return None
        if torch.version.cuda is None:  # a build for CPUs, or for another maker's devices
            return NEVER
        cuda = torch.cuda
        if not cuda.is_initialized():
            return None
        self._events = PhaseEvents(
            lambda: cuda.Event(enable_timing=True), cuda.is_current_stream_capturing
        )
        return str(cuda.get_device_properties(cuda.current_device()).uuid)

    def mark(self, serial: int, phase: int) -> None:
        """A phase of a step begins."""
        if self._events:
            self._events.mark(serial, phase)

    def ready(self, step: ClosedStep) -> bool:
        """Whether the GPU is done with a closed step."""
        return self._events is None or self._events.ready(step)

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        """Times of the phases on the GPU."""
        return self._events.columns(steps) if self._events else {}

    def close(self) -> None:
        """Take what is known by now, and mark no more."""
        if self._events:
            self._events.close()
