"""The GPU that torch uses, and the time of phases on it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainobs.session.accelerator import NEVER
from trainobs.steps.clock import ClosedStep
from trainobs.steps.timeline import Columns


class Cuda:
    """What torch knows of the GPU; see `trainobs.session.accelerator.Accelerator`.

    Never begins CUDA by itself, and never waits for it. A loop that does without torch does not
    load it.

    Notes:
        Of several devices that one process uses, it is the current one of the training thread.
    """

    def uuid(self) -> str | None:
        """UUID of the current device; None until the process has begun to use CUDA."""
        torch = sys.modules.get("torch")
        if torch is None:
            return None
        if torch.version.cuda is None:  # a build for CPUs, or for another maker's devices
            return NEVER
        if not torch.cuda.is_initialized():
            return None
        return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)

    def mark(self, serial: int, phase: int) -> None:
        """See the protocol."""

    def ready(self, step: ClosedStep) -> bool:
        """See the protocol."""
        return True

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        """See the protocol."""
        return {}

    def close(self) -> None:
        """See the protocol."""
