"""The fast path of the step clock in Python: what nearly every step does.

What is rare is in `StepClock`. `native/clock.c` does the same in C.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, MutableSequence

from trainobs.core.abi import Phase
from trainobs.core.records import SETUP
from trainobs.steps.closed_step import packed, with_more
from trainobs.steps.fetch_steps import FetchSteps
from trainobs.steps.states import StepsBy, StepState

LAST_STEP = 2**62
"""Largest number of a step: well within the 64 bits that the run log has for it."""

_LOADER = Phase.LOADER.value
_FETCHES, _OPTIMIZER = StepsBy.FETCHES.value, StepsBy.OPTIMIZER.value
_RUNNING, _UNPROVEN, _ENDED, _OPENED = map(int, StepState)


class Marker:
    """The step word, the times of phases and the closed steps: see `StepClock`."""

    # Slots: CPython takes a tenth longer for attributes in a dictionary of 30 or more.
    __slots__ = (
        "_ends",
        "_explained",
        "_merged",
        "_now",
        "_on_close",
        "_outer",
        "_phase_ns",
        "_previous",
        "_sample",
        "_since_ns",
        "_start_ns",
        "_state",
        "_switches",
        "_unexplained",
        "_word",
        "may_wait",
        "closed",
        "delivering",
        "epoch",
        "epoch_shift",
        "fetches",
        "other_loaders",
        "on_switch",
        "phase",
        "serial",
        "step",
        "steps_by",
        "unended_batches",
    )

    may_wait: int
    closed: deque[bytes]
    delivering: bool
    epoch: int
    epoch_shift: int
    fetches: FetchSteps
    other_loaders: bool
    on_switch: Callable[[int, int], None] | None
    phase: int
    serial: int
    step: int
    steps_by: int
    unended_batches: int
    _ends: int
    _explained: bool
    _merged: tuple[int, ...]
    _now: Callable[[], int]
    _on_close: Callable[[], None] | None
    _phase_ns: list[int]
    _previous: bytes | None
    _sample: Callable[[], Iterable[int] | None] | None
    _since_ns: int
    _start_ns: int
    _state: int
    _switches: int
    _unexplained: int
    _word: MutableSequence[int] | memoryview

    def __init__(self) -> None:
        self._outer: list[int] = []
        self.phase = Phase.OTHER.value

    @property
    def in_phase(self) -> bool:
        """Whether a phase was entered and not left."""
        return bool(self._outer)

    def enter(self, phase: int, /) -> None:
        """Begin a phase inside the current one, whose time stops meanwhile."""
        if phase == _LOADER:
            self._unexplained += 1
            self._explained = False
        self._outer.append(self.phase)
        self._switch(phase)

    def leave(self) -> None:
        """End the phase entered last; without one, nothing happens."""
        if self._outer:
            self._switch(self._outer.pop())

    def explain(self) -> None:
        """It is known what the wait for the loader that goes on is for."""
        if not self._explained:
            self._explained = True
            self._unexplained -= 1

    def doubt(self) -> None:
        """Of the wait for the loader that goes on, some part is for something unknown."""
        self._unexplained += 1

    def begin_fetch(self, leads: bool = True, /) -> None:
        """A batch is about to be asked for: after a finished step, a new one begins here.

        Args:
            leads: whether this fetch ends the step before, where fetches do; one that does not
                belongs to the step that goes on.
        """
        if self.steps_by != _FETCHES:
            leads = True
        elif leads and self.step != SETUP and not self._outer:
            self.end_step()
        if leads and self._state == _ENDED:
            self._outer.append(self.phase)
            self._open(_LOADER)
            self._unexplained = 1
            self._explained = False
        else:
            self.enter(_LOADER)

    def end_fetch(self) -> None:
        """The loader has answered; whether with a batch, `begin_batch` or `cancel` will tell."""
        self.leave()

    def begin_batch(
        self, step: int | None = None, epoch: int | None = None, leads: bool = True, /
    ) -> None:
        """A batch is there: the step that its fetch opened is real.

        Args:
            step: its number; by default one more than the step before.
            epoch: its epoch, if the loop counts them.
            leads: as its fetch.

        Where steps are those of an optimizer, it is real once one has stepped: `StepClock.stepped`.
        """
        if self._state >= _ENDED and (leads or self.steps_by != _FETCHES):
            if self._state == _ENDED:
                self._open(self.phase)
            if self.step < LAST_STEP:
                self.step += 1
            self._state = _UNPROVEN
            if self.steps_by != _OPTIMIZER:
                self._publish()
        if not self._ends:
            self.unended_batches += 1
        if step is not None:
            self.step = step
        if epoch is not None:
            self.epoch = epoch - self.epoch_shift

    def begin_step(self, number: int | None = None, /) -> None:
        """A step is marked, and from now on fetches end none."""
        if self.steps_by == _FETCHES:
            self._mark_first()
        self.begin_batch(number)

    def end_step(self) -> None:
        """The optimizer has stepped: the next fetch or batch opens a new step."""
        self._state = _ENDED if self._previous is None else _OPENED
        self._ends += 1
        self.unended_batches = 0

    def _mark_first(self) -> None:
        """The first mark of a loop whose steps were taken from fetches."""
        raise NotImplementedError

    def _close_fetched(self, step: bytes) -> None:
        """Close a step that was taken from fetches."""
        raise NotImplementedError

    def _open(self, phase: int) -> None:
        """Begin the next step, in a phase, with one look at the time and one store for both."""
        now = self._now()
        phase_ns = self._phase_ns
        phase_ns[self.phase] += now - self._since_ns
        step = packed(
            (
                *(self.serial, self.step, self.epoch, self._start_ns, now),
                *(self._switches + 1, self._unexplained, len(phase_ns), *phase_ns),
            )
        )
        if self._sample or self._merged:
            step = with_more(step, self._sample() if self._sample else None, self._merged)
        self._previous = step
        self._state = _OPENED
        self._start_ns = self._since_ns = now
        self.phase = phase
        self._phase_ns = [0] * len(self._phase_ns)  # `_sample` may have named some
        self._merged = ()
        self._switches = 0
        self._unexplained = 0
        self._explained = True
        self.serial += 1
        self._mark()
        if self.on_switch is not None:
            self.on_switch(self.serial, phase)

    def _publish(self) -> None:
        """What was opened is a step, so that the one before is over."""
        previous, self._previous = self._previous, None
        if previous is None:
            return
        self._state = _RUNNING
        if self.steps_by == _FETCHES:
            self._close_fetched(previous)
        else:
            self.closed.append(previous)
        if self._on_close is not None and len(self.closed) >= self.may_wait:
            self._on_close()

    def _switch(self, phase: int) -> None:
        now = self._now()
        self._phase_ns[self.phase] += now - self._since_ns
        self._since_ns = now
        self.phase = phase
        self._switches += 1
        self._word[0] = self.serial << 8 | phase
        if self.on_switch is not None:
            self.on_switch(self.serial, phase)

    def _mark(self) -> None:
        self._word[0] = self.serial << 8 | self.phase
