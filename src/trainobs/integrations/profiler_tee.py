"""A tee on Lightning's profiler: the only place where Lightning tells of fetches and checkpoints.

Lightning calls `trainer.profiler` around each action. The tee stands in its place, forwards
everything to the profiler that the user chose, and tells the step clock.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from trainobs.core.kernel import Phase
from trainobs.steps.clock import StepClock

FETCH = -1
"""Not a phase alone: the fetch of a training batch also begins a step."""

FAILED = -2
"""No phase: the first of the callbacks is about to hear of an exception, and may raise another, of
which those behind it hear nothing."""

_PHASES = {
    "train_dataloader_next": FETCH,
    "batch_to_device": Phase.TRANSFER.value,
    "training_step": Phase.FORWARD.value,
    "backward": Phase.BACKWARD.value,
    "optimizer_step": Phase.OPTIMIZER.value,
    "save_checkpoint": Phase.CHECKPOINT.value,
    "on_exception": FAILED,
}
"""Last part of the action's name -> phase, as in `[Strategy]DDPStrategy.training_step`."""


class ProfilerTee:
    """Stands for `inner`, whose class and attributes it shows, and marks phases on a clock.

    Attributes:
        trainobs_inner: the profiler that it stands for.
        trainobs_paused: whether actions are only forwarded: in validation, where the same actions
            mean other things, and after the run.
    """

    _OWN = frozenset(
        {"trainobs_inner", "trainobs_paused", "_clock", "_on_failure", "_phases", "_open"}
    )

    def __init__(self, inner: Any, clock: StepClock, on_failure: Callable[[], None]) -> None:
        self.trainobs_inner = inner
        self._on_failure = on_failure
        self.trainobs_paused = False
        self._clock = clock
        self._phases: dict[str, int | None] = {}
        self._open: list[str] = []

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """So that `isinstance` answers as for the profiler itself."""
        return type(self.trainobs_inner)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the profiler's."""
        return getattr(self.trainobs_inner, name)

    def __setattr__(self, name: str, value: object) -> None:
        """Lightning and users set attributes of the profiler."""
        if name in self._OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.trainobs_inner, name, value)

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Any]]:
        """A copy is one of the profiler: there is one clock."""
        return _profiler, (self.trainobs_inner,)

    def start(self, action_name: str) -> None:
        """Forward, and begin the action's phase."""
        self.trainobs_begin(action_name)
        self.trainobs_inner.start(action_name)

    def stop(self, action_name: str) -> None:
        """Forward, and end the action's phase."""
        self.trainobs_inner.stop(action_name)
        self.trainobs_end(action_name)

    def profile(self, action_name: str) -> AbstractContextManager[Any]:
        """Context of an action."""
        inner: AbstractContextManager[Any] = self.trainobs_inner.profile(action_name)
        return inner if self._phase(action_name) is None else _Timed(self, action_name, inner)

    def _phase(self, action: str) -> int | None:
        try:
            return self._phases[action]
        except KeyError:
            return self._phases.setdefault(action, _PHASES.get(action.rpartition(".")[2]))

    def trainobs_begin(self, action: str) -> None:
        """Begin the phase of an action, if it has one."""
        phase = self._phase(action)
        if phase == FAILED:
            self._on_failure()
        if phase is None or phase == FAILED or self.trainobs_paused:
            return
        self._open.append(action)
        if phase == FETCH:
            self._clock.begin_fetch()
        else:
            self._clock.enter(phase)

    def trainobs_end(self, action: str) -> None:
        """An action that began while paused, or before the tee, ends unnoticed."""
        if not self._open or self._open[-1] != action:
            return
        self._open.pop()
        if self._phase(action) == FETCH:
            self._clock.end_fetch()
        else:
            self._clock.leave()


def _profiler(inner: Any) -> Any:
    return inner


class _Timed:
    """Context of an action; a class, since this is the hot path and a generator costs twice."""

    __slots__ = ("_action", "_inner", "_tee")

    def __init__(self, tee: ProfilerTee, action: str, inner: AbstractContextManager[Any]) -> None:
        self._tee = tee
        self._action = action
        self._inner = inner

    def __enter__(self) -> Any:
        self._tee.trainobs_begin(self._action)
        return self._inner.__enter__()

    def __exit__(self, *exception: Any) -> bool | None:
        try:
            return self._inner.__exit__(*exception)
        finally:
            self._tee.trainobs_end(self._action)
