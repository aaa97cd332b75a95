"""Taps on a Hugging Face Trainer, whose callbacks do not hear of fetches, phases or exceptions.

A tap stands for a method of one Trainer, or of its accelerator or callback handler, as long as the
Trainer is observed. It calls the method with what it was given, and tells the step clock.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from trainobs.core.abi import Phase
from trainobs.hooks.batch_matcher import Matcher, matcher_for
from trainobs.hooks.loader_listener import LoaderListener
from trainobs.steps.clock import StepClock

_PHASES = {
    "compute_loss": Phase.FORWARD,
    "save_model": Phase.CHECKPOINT,
    "_save_checkpoint": Phase.CHECKPOINT,
    "log": Phase.LOGGING,
}
"""Methods of a Trainer -> the phase that they are."""

_EVALUATIONS = ("evaluate", "predict")
_FETCH = "get_batch_samples"
_LOOP = ("_evaluate", "_run_epoch", "_finalize_training")
"""Methods of which the training loop consists; an exception that leaves one ends the training. What
callbacks do before the first and between two of these is tapped by itself."""

_ONLY_IF_SEEN = frozenset({Phase.FORWARD, Phase.BACKWARD})
"""A Trainer of one's own may train without the methods that tell of these."""

_ABSENT = object()

Around = Callable[..., Any]
"""Called with the method, and then with what the method was called with."""


class Tap:
    """Stands for the method `name` of `owner`, until it is removed.

    A copy or pickle of the owner gets the method itself.
    """

    def __init__(self, owner: Any, name: str, around: Around) -> None:
        self._owner = owner
        self._name = name
        self._around: Around | None = around
        self._before = vars(owner).get(name, _ABSENT)
        self._method = getattr(owner, name)
        functools.update_wrapper(self, self._method)
        setattr(owner, name, self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        if self._around is None:
            return self._method(*args, **kwargs)
        return self._around(self._method, *args, **kwargs)

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Any]]:
        return _itself, (self._method,)

    def remove(self) -> None:
        """Put the method back; a tap that somebody wrapped meanwhile stays, and only forwards."""
        self._around = None
        if vars(self._owner).get(self._name) is not self:
            return
        if self._before is _ABSENT:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._before)


def _itself(method: Any) -> Any:
    return method


class TrainerTaps:
    """All taps on one Trainer.

    Args:
        trainer: a `transformers.Trainer` that is about to train.
        watch: to be told of fetches, with its clock.
        later: callbacks that have yet to hear that the training begins.
        on_end: called with the outcome as the training ends, before any callback hears of it; and
            when an exception leaves the training loop.
        on_fault: called after a fault of the clock, while it is handled.
    """

    def __init__(
        self,
        trainer: Any,
        watch: LoaderListener,
        *,
        later: Iterable[Any],
        on_end: Callable[[str], None],
        on_fault: Callable[[], None],
    ) -> None:
        self._clock, self._watch = watch.clock, watch
        self._matcher: Matcher | None = None
        self._on_end = on_end
        self._on_fault = on_fault
        self._evaluating = False
        self._taps: list[Tap] = []
        for name, phase in _PHASES.items():
            self._tap(trainer, name, functools.partial(self._phase, phase), phase)
        for name in _EVALUATIONS:
            self._tap(trainer, name, self._evaluation, Phase.VALIDATION)
        self._tap(trainer, _FETCH, self._fetch, Phase.LOADER)
        self._tap(
            getattr(trainer, "accelerator", None),
            "backward",
            functools.partial(self._phase, Phase.BACKWARD),
            Phase.BACKWARD,
        )
        for name in _LOOP:
            self._tap(trainer, name, self._part_of_loop)
        for callback in later:  # the handler has begun to call them, and is too late to tap
            self._tap(callback, "on_train_begin", self._part_of_loop)
        self._tap(trainer.callback_handler, "on_epoch_begin", self._part_of_loop)
        self._tap(trainer.callback_handler, "on_train_end", self._end)

    def remove(self) -> None:
        """Put every method back. May be done twice."""
        while self._taps:
            self._taps.pop().remove()

    def _tap(self, owner: Any, name: str, around: Around, phase: Phase | None = None) -> None:
        if not hasattr(owner, name):  # another release of the library
            return
        self._taps.append(Tap(owner, name, around))
        if phase is not None and phase not in _ONLY_IF_SEEN:
            self._clock.measured.add(phase.value)

    def _phase(self, phase: Phase, method: Around, /, *args: Any, **kwargs: Any) -> Any:
        if self._evaluating:
            return method(*args, **kwargs)
        self._mark(self._begin, phase.value)
        try:
            return method(*args, **kwargs)
        finally:
            self._mark(self._clock.leave)

    def _begin(self, phase: int) -> None:
        self._clock.measured.add(phase)
        self._clock.enter(phase)

    def _evaluation(self, method: Around, /, *args: Any, **kwargs: Any) -> Any:
        """All of it is one phase: the same methods mean other things here."""
        if self._evaluating:
            return method(*args, **kwargs)
        self._mark(self._begin, Phase.VALIDATION.value)
        self._evaluating = True
        try:
            return method(*args, **kwargs)
        finally:
            self._evaluating = False
            self._mark(self._clock.leave)

    def _fetch(self, method: Around, /, *args: Any, **kwargs: Any) -> Any:
        if args:  # the first is the iterator over the batches
            self._mark(self._look_at, args[0])
            args = (_Fetching(args[0], self._clock, self._mark, self._matcher), *args[1:])
        return method(*args, **kwargs)

    def _look_at(self, batches: object) -> None:
        """See which batches of torch's come from an iterator, one for each epoch."""
        if self._matcher is None or not self._matcher.is_by(batches):
            self._matcher = matcher_for(batches, self._watch)

    def _part_of_loop(self, method: Around, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            self._on_end(f"exception: {type(error).__name__}")
            raise

    def _end(self, method: Around, /, *args: Any, **kwargs: Any) -> Any:
        self._on_end("ok")
        return method(*args, **kwargs)

    def _mark(self, mark: Callable[..., None], *args: Any) -> None:
        """Tell the clock; if that fails, the training must not notice."""
        try:
            mark(*args)
        except Exception:
            self._on_fault()


class _Fetching:
    """An iterator over the batches, whose fetches the clock is told of."""

    def __init__(
        self,
        batches: Iterator[Any],
        clock: StepClock,
        mark: Callable[..., None],
        matcher: Matcher | None,
    ) -> None:
        self._batches = batches
        self._matcher = matcher
        self._clock = clock
        self._mark = mark

    def __iter__(self) -> _Fetching:
        return self

    def __next__(self) -> Any:
        matcher = self._matcher
        self._mark(self._clock.begin_fetch)
        if matcher is not None:
            self._mark(matcher.ask)
        try:
            batch = next(self._batches)
        except StopIteration:
            if matcher is not None:
                self._mark(matcher.explain)
            raise
        finally:
            self._mark(self._clock.end_fetch)
        if matcher is not None:
            self._mark(matcher.got, batch)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def calling_trainer(state: object) -> Any | None:
    """The Trainer that called the hook from which this is called, if one did.

    Hooks are given nothing that leads to it, so it is looked for on the stack: the object whose
    state the hook was given.
    """
    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        caller = frame.f_back
        if caller is None:
            return None
        frame = caller
        fields = getattr(frame.f_locals.get("self"), "__dict__", {})
        if fields.get("state") is state and "callback_handler" in fields:
            return frame.f_locals["self"]
    return None


_FRAMES = 8
"""Between a hook and its Trainer there are three: no need to look into the frames of the user."""


def is_tapped(trainer: Any) -> bool:
    """Whether somebody observes a Trainer."""
    return any(type(value) is Tap for value in vars(trainer).values())
