"""A tee on Lightning's profiler: the only place where Lightning tells of fetches and checkpoints.

Lightning calls `trainer.profiler` around each action. The tee stands in its place, forwards
everything to the profiler that the user chose, and tells the step clock.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from trainobs.core.abi import Phase
from trainobs.steps.clock import StepClock
from trainobs.steps.fast_path import CallbackContext

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


_IDLE = frozenset(
    f"{namespace}.profilers.base.PassThroughProfiler"
    for namespace in ("lightning.pytorch", "pytorch_lightning")
)
"""Profilers that do nothing with an action; a Trainer's own, unless it is given another."""


class ProfilerTee:
    """Stands for `inner`, whose class and attributes it shows, and marks phases on a clock.

    Where `inner` does nothing, it is not called for that: Lightning profiles two dozen actions a
    step, and its context of an action costs more than a mark.

    Attributes:
        trainobs_inner: the profiler that it stands for.
        trainobs_paused: whether actions are only forwarded: in validation, where the same actions
            mean other things, and after the run.
    """

    _OWN = frozenset(
        {
            "trainobs_inner",
            "trainobs_paused",
            "_clock",
            "_contexts",
            "_idle",
            "_left_out",
            "_on_failure",
            "_on_fault",
            "_open",
            "_paused",
            "_phases",
        }
    )

    def __init__(
        self,
        inner: Any,
        clock: StepClock,
        on_failure: Callable[[], None],
        on_fault: Callable[[], None],
    ) -> None:
        """Stand for a profiler.

        Args:
            inner: the profiler.
            clock: to be told.
            on_failure: called when the training fails, before any callback hears of it.
            on_fault: called after a fault of the clock, while it is handled.
        """
        self.trainobs_inner = inner
        self._on_failure = on_failure
        self._on_fault = on_fault
        self._clock = clock
        self._contexts: dict[str, AbstractContextManager[Any]] = {}
        self._idle = _is_idle(inner)
        self._left_out: set[int] = set()
        self._paused = False
        self._phases: dict[str, int | None] = {}
        self._open: list[str] = []

    @property
    def trainobs_paused(self) -> bool:
        """Whether actions are only forwarded."""
        return self._paused

    @trainobs_paused.setter
    def trainobs_paused(self, paused: bool) -> None:
        self._paused = paused
        self._contexts.clear()

    def trainobs_leave_out(self, phase: int) -> None:
        """Mark a phase no more."""
        self._left_out.add(phase)
        self._contexts.clear()

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
            self._idle = _is_idle(self.trainobs_inner)
            self._contexts.clear()

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
        context = self._contexts.get(action_name)
        return self._context(action_name) if context is None else context

    def _context(self, action: str) -> AbstractContextManager[Any]:
        phase = self._phase(action)
        if not self._idle:
            inner: AbstractContextManager[Any] = self.trainobs_inner.profile(action)
            return inner if phase is None else _Timed(self._clock, phase, self._on_fault, inner)
        clock, context = self._clock, CallbackContext(None, None, None, self._on_fault, action)
        if phase == FETCH:
            context = CallbackContext(clock.begin_fetch, True, clock.leave, self._on_fault, action)
        elif phase is not None:
            context = CallbackContext(clock.enter, phase, clock.leave, self._on_fault, action)
        self._contexts[action] = context
        return context

    def _phase(self, action: str) -> int | None:
        """The phase that begins with an action, if one does."""
        phase = self._phases.setdefault(action, _PHASES.get(action.rpartition(".")[2]))
        if phase == FAILED:
            self._on_failure()
        return None if phase == FAILED or self._paused or phase in self._left_out else phase

    def trainobs_begin(self, action: str) -> None:
        """Begin the phase of an action, if it has one."""
        phase = self._phase(action)
        if phase is not None:
            self._open.append(action)
            _begin(self._clock, phase, self._on_fault)

    def trainobs_end(self, action: str) -> None:
        """An action that began while paused, or before the tee, ends unnoticed."""
        if not self._open or self._open[-1] != action:
            return
        self._open.pop()
        _end(self._clock, self._on_fault)


def _profiler(inner: Any) -> Any:
    return inner


def _is_idle(profiler: Any) -> bool:
    """Whether a profiler does nothing with an action; not if somebody has patched it."""
    kind = type(profiler)
    return f"{kind.__module__}.{kind.__qualname__}" in _IDLE and not (
        vars(profiler).keys() & {"profile", "start", "stop"}
    )


# Contexts are classes, since this is the hot path and a generator costs twice.


@dataclass(eq=False, slots=True)
class _Timed:
    """Context of an action within that of a profiler."""

    clock: StepClock
    phase: int
    on_fault: Callable[[], None]
    inner: AbstractContextManager[Any]

    def __enter__(self) -> Any:
        _begin(self.clock, self.phase, self.on_fault)
        return self.inner.__enter__()

    def __exit__(self, *exception: Any) -> bool | None:
        try:
            return self.inner.__exit__(*exception)
        finally:
            _end(self.clock, self.on_fault)


def _begin(clock: StepClock, phase: int, on_fault: Callable[[], None]) -> None:
    try:
        if phase == FETCH:
            clock.begin_fetch()
        else:
            clock.enter(phase)
    except Exception:
        on_fault()


def _end(clock: StepClock, on_fault: Callable[[], None]) -> None:
    """A fetch ends like any other phase."""
    try:
        clock.leave()
    except Exception:
        on_fault()
