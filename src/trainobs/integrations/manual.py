"""Backward passes under Lightning's manual optimization, which are parts of the training step.

Lightning's profiler hears nothing of them. Callbacks do, where the module calls `manual_backward`.
"""

from __future__ import annotations

from trainobs.core.abi import Phase
from trainobs.integrations.profiler_tee import ProfilerTee
from trainobs.steps.clock import StepClock

_BACKWARD = Phase.BACKWARD.value
_BOTH = frozenset({Phase.FORWARD.value, _BACKWARD})


class ManualBackward:
    """Marks them on a clock; where none are seen, forward and backward are unknown.

    Args:
        clock: to be told.
        tee: marks the training step as forward, as long as backward is seen.
    """

    def __init__(self, clock: StepClock, tee: ProfilerTee) -> None:
        self._clock = clock
        self._tee = tee
        self._goes_on = self._seen = self._gave_up = False
        clock.measured -= _BOTH

    def begin(self) -> None:
        """A backward pass begins; that of the one before has failed, if nobody said that it ended.

        A training step may catch its exception, as that of a GPU without memory.
        """
        if self._tee.trainobs_paused or self._gave_up:
            return
        self.end()
        if not self._seen:
            self._seen = True
            self._clock.measured |= _BOTH
        self._goes_on = True
        self._clock.enter(_BACKWARD)

    def end(self) -> None:
        """It is over."""
        if self._goes_on:
            self._goes_on = False
            self._clock.leave()

    def end_batch(self, *, stepped: bool) -> None:
        """A batch is over: an optimizer that stepped has had gradients from a backward pass."""
        self.end()
        if stepped and not self._seen and not self._gave_up:
            self._gave_up = True
            self._clock.measured -= _BOTH
            self._tee.trainobs_leave_out(Phase.FORWARD.value)
        elif stepped:
            self._seen = False
