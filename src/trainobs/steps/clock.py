"""The step clock: from what the training loop does to marks, phase times and closed steps.

A step reaches from its first fetch to the first fetch of the next step, so steps leave no gap and
what lies between them (validation, a checkpoint, logging) belongs to the step before. The fetch
that finds a loader exhausted opens no step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import zip_longest

from trainobs.core.abi import Phase
from trainobs.core.records import SETUP
from trainobs.steps.closed_step import ClosedStep
from trainobs.steps.fast_path import Marker
from trainobs.steps.fetch_steps import MAX_HELD, FetchSteps
from trainobs.steps.marker import LAST_STEP
from trainobs.steps.states import StepsBy, StepState, Supply

__all__ = ["LAST_STEP", "MAX_NAMED", "StepClock", "StepWord"]

_PHASES = len(Phase)
_OTHER = Phase.OTHER.value
_MARKS, _FETCHES, _OPTIMIZER = map(int, StepsBy)
_RUNNING, _UNPROVEN, _ENDED, _OPENED = map(int, StepState)
_ASIDE = (Phase.VALIDATION.value, Phase.CHECKPOINT.value, Phase.LOGGING.value)

MAX_NAMED = 16
"""Phases with a name of the user's; each is a column."""

StepWord = memoryview | list[int]
"""Where the kernel reads `serial << 8 | phase`, at index 0, and at 1 the epoch that files are read
for; a list of one number where no kernel reads."""


class StepClock(Marker):
    """Marks the current step and phase for the kernel, and times both.

    Used by the training thread only. A switch of phase is two reads of the clock's own fields, one
    clock read and one store into shared memory: no system call, no lock. What nearly every step
    does is in `Marker`; here is what begins and ends a run, and what is rare.

    Attributes:
        closed: steps that are over, oldest first, for the collector to take; each a `ClosedStep`,
            or its bytes.
        measured: phases that somebody marks; time in another one is not 0 but unknown.
        named: names of the phases that have one of the user's; their numbers follow on `Phase`. The
            kernel takes those that it does not know for `OTHER`.
        over: whether the last step is closed.
        phase: the phase that the loop is in; to be read.
        serial: of the step that the kernel counts for: 0 is the set-up; to be read.
        step: number of the current step, as the loop counts; `SETUP` before the first; to be read.
        steps_by: what ends steps, a `StepsBy`.
        supply: whether batches come, where that is an optimizer.
        fetches: which fetches end steps, where fetches do, and the first of these steps.
        delivering: whether what a loader gives now goes to the step that fetches it, where no loop
            goes to it. One that reads ahead gets it for the next step.
        other_loaders: whether a fetch may also ask loaders that are not torch's, of which nothing
            is known.
        may_wait: as many closed steps may wait before `on_close` is called.
        unended_batches: batches of a loop that has not ended any step.
        on_cancel: called with the serial of an opened step that was none, and of the step that
            goes on; for the collector, since the kernel counted some of the one in the other.
        on_switch: called with the serial and the phase at each switch, where phases are timed on
            a GPU as well.
    """

    # There is a `__dict__` for what somebody puts in the place of a method.
    __slots__ = (
        *("__dict__", "_before_epoch", "_early", "_ends_before_epoch", "_epoch_count"),
        *("_finished", "_read_all", "measured", "named", "on_cancel", "over", "supply"),
    )

    def __init__(
        self,
        word: StepWord,
        *,
        sample: Callable[[], Iterable[int] | None] | None = None,
        on_close: Callable[[], None] | None = None,
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Begin the set-up, which is serial 0.

        Args:
            word: where the kernel reads `serial << 8 | phase`, at index 0.
            sample: called as a step closes, for totals that only this thread can read.
            on_close: called after a step was put on `closed`.
            now: CLOCK_MONOTONIC in ns.
        """
        super().__init__()
        self.closed: deque[bytes] = deque()
        self.on_cancel: Callable[[int, int], None] | None = None
        self.on_switch: Callable[[int, int], None] | None = None
        self.epoch = 0
        self.over = False
        self.measured = {_OTHER}
        self.named: list[str] = []
        self.steps_by = _MARKS
        self.supply = Supply()
        self.delivering = self.other_loaders = False
        self.fetches = FetchSteps()
        self.may_wait = 0
        self._epoch_count = 0
        self._before_epoch = SETUP
        self._early: list[object] = []
        self.epoch_shift = 0
        self._read_all = False  # whether a loader had no batch any more in this epoch
        self._ends = self._ends_before_epoch = 0
        self.unended_batches = 0
        self._word = word
        self._sample = sample
        self._on_close = on_close
        self._now = now
        self.serial = 0
        self.step = SETUP
        self._start_ns = self._since_ns = now()
        self._phase_ns = [0] * _PHASES
        self._merged = ()
        self._switches = 0
        self._unexplained = 0
        self._explained = True  # there is no wait yet
        self._state = _ENDED
        self._previous: bytes | None = None  # the step before, until this one surely is one
        self._finished = False
        self._mark()

    def name_phase(self, name: str) -> int | None:
        """Number of a phase with a name of the user's; None if there are too many already."""
        if name not in self.named:
            if len(self.named) == MAX_NAMED:
                return None
            self._phase_ns = [*self._phase_ns, 0]
            self.named.append(name)
        return _PHASES + self.named.index(name)

    @property
    def goes_on_ns(self) -> int:
        """What the step that goes on has taken, without phases that are no part of training."""
        phase_ns = self._phase_ns
        return self._now() - self._start_ns - sum(phase_ns[phase] for phase in _ASIDE)

    def begin_epoch(self, of: object = None) -> int:
        """Number, from 0, of the epoch that begins: for loops that do not count epochs.

        A loader that begins beside another, before a step was done, is of the same epoch.

        Args:
            of: what stands for the loader, where that is known.
        """
        if self._begins_epoch():
            self._epoch_count += 1
            if self.steps_by == _FETCHES and len(self._early) < MAX_HELD:
                self._early.append(of)
            self._read_all = False
            self._before_epoch, self._ends_before_epoch = self.step, self._ends
        return self._epoch_count - 1

    def begin_reading(self) -> None:
        """A pass over the training data is about to begin, and its workers with it."""
        count = self._epoch_count if self._begins_epoch() else self._epoch_count - 1
        self.read_for(count - self.epoch_shift)

    def _begins_epoch(self) -> bool:
        if self._epoch_count == 0:
            return True
        # A single batch, as in `next(iter(loader))`, is a look at the data.
        is_one = self.step - self._before_epoch <= 1
        looked = self.steps_by == _FETCHES and not self._read_all and is_one
        return self._ends > self._ends_before_epoch and not looked

    def sample_too(self, act: Callable[[int], object]) -> None:
        """Have something done as each step closes, by the training thread; it gets the serial."""
        before = self._sample

        def sample() -> Iterable[int] | None:
            act(self.serial)
            return before() if before else None

        self._sample = sample

    def read_for(self, epoch: int) -> None:
        """Tell the kernel for which epoch files are read from now on."""
        if len(self._word) > 1:
            self._word[1] = epoch

    def stepped(self, *, main: bool = True, first: int = 0) -> None:
        """An optimizer has stepped, in a loop that marks no step: what a fetch has opened is one.

        So what is fetched in vain, for a look at the data or a validation with gradients, is part
        of the step that comes. What was taken for steps before the first time is part of this one.

        Args:
            main: whether it is the optimizer that ends steps where the loader is exhausted.
            first: number of the first step, where no fetch has begun one.
        """
        if self.steps_by == _FETCHES:
            self._mark_first()
            self.steps_by = _OPTIMIZER
            if self._read_all and self.fetches.leader is None:
                self.supply.run_dry()
        else:  # a pass of a validation may have begun an epoch inside of this one
            self._epoch_count = min(self._epoch_count, self.epoch + self.epoch_shift + 1)
        supply = self.supply
        if supply.is_out and not main:
            return
        if supply.is_none:
            supply.step(had_batch=not self.is_idle)
        if self._state == _OPENED:  # no batch came: it was there already
            self.begin_batch(first if self.step == SETUP else None)
        self._publish()
        self.end_step()
        if supply.is_out:
            self._open(self.phase)

    def begin_pass(self) -> None:
        """A loader is about to be asked for its first batch: no step is left from those before."""
        was_out = self.supply.is_out
        self.supply.ask()
        if was_out and self._state == _OPENED:  # else there are batches of a step to come
            self._rejoin()

    def end_pass(self, *, leads: bool) -> None:
        """The loader had no batch any more.

        Args:
            leads: as the fetches of the pass.
        """
        self._read_all |= leads
        if self.steps_by == _OPTIMIZER and (leads or self.supply.is_out):
            self.supply.run_dry()
        else:
            self.cancel()

    def by_optimizers(self) -> None:
        """Fetches end no steps, from the beginning on: nobody has said what the loop trains on."""
        self.steps_by = _OPTIMIZER

    @property
    def ends(self) -> int:
        """How often a step has ended."""
        return self._ends

    @property
    def no_steps(self) -> bool:
        """Whether steps are those of an optimizer, and none has stepped."""
        return self.steps_by == _OPTIMIZER and not self._ends

    @property
    def is_idle(self) -> bool:
        """Whether no batch came since the last step ended."""
        return self._state >= _ENDED

    def by_loaders(self) -> None:
        """It was said after all: fetches of that end steps, until an optimizer does."""
        if self.no_steps:
            self._back_to_setup()
            self.steps_by = _FETCHES
        self.fetches.follow(self.fetches.leader)

    def by_marks(self) -> int:
        """The loop marks its steps from now on; returns how many an optimizer has ended before."""
        if self.steps_by != _OPTIMIZER:
            return 0
        before = self.step + (self._state == _OPENED)  # but for the one that the mark is of
        self.steps_by = _MARKS
        self.supply = Supply()
        if self._state == _UNPROVEN:
            self._publish()
        elif self._state == _ENDED and self.step != SETUP:
            self._state = _RUNNING  # the mark is of the step that has just ended
        return max(before, 0)

    def mark(self, number: int | None = None, *, opens: bool = False) -> None:
        """The loop says in one call that a step has ended: what came since the last end is it.

        Args:
            number: the step's number; by default one more than the last.
            opens: whether the next step begins here, and not with a fetch. It does where no batch
                is to come: a loop that fetches ahead has some left.
        """
        self.begin_step(number)
        self.steps_by = _OPTIMIZER  # the call stands for it: what follows the last is no step
        self._publish()
        self.end_step()
        if opens or self.supply.is_out:
            self.open_step()

    def open_step(self) -> None:
        """A step begins here, if its end will be marked."""
        self._open(self.phase)

    def unmark(self) -> None:
        """The step that `mark` has ended goes on, if none has begun since; no call ends steps."""
        self.steps_by = _MARKS
        if self._state == _ENDED:
            self._state, self._ends = _RUNNING, self._ends - 1

    def cancel(self) -> None:
        """No batch came: what was opened goes back to the step before."""
        if self._previous is None or self._state != _OPENED:
            return
        before = ClosedStep(self._previous)
        self._switch(self.phase)
        self._phase_ns = _added(before.phase_ns, self._phase_ns)
        self._switches += before.switches
        self._unexplained += before.unexplained
        cancelled = self.serial
        self.serial, self._start_ns, self._previous = before.serial, before.start_ns, None
        self._merged = before.merged
        self._state = _ENDED
        self._mark()
        if self.on_cancel:
            self.on_cancel(cancelled, before.serial)

    def join(self) -> None:
        """A step goes on as the clock begins: it is part of the set-up."""
        self._state = _RUNNING

    def finish(self) -> None:
        """Close the last step; the clock is of no use afterwards. May be called twice."""
        if self._finished:
            return
        if self.no_steps:
            self._back_to_setup()
        elif self.steps_by == _OPTIMIZER:  # there may be batches, but no optimizer stepped
            self._rejoin()
        self.cancel()
        self.on_cancel = None
        self.closed.extend(self.fetches.release())
        self._open(self.phase)
        self.over = True  # first, so that who finds the last step knows that it is the last
        self._publish()
        self._finished = True

    def detach(self) -> None:
        """Mark no more for the kernel: in a forked child, or after the probes are gone."""
        self._word = [0]

    def _rejoin(self) -> None:
        """What was opened belongs to the step before, and keeps its serial.

        What others have found in it is known by that: lookups, times on a GPU.
        """
        if self._previous is None:
            return
        before = ClosedStep(self._previous)
        is_idle = self.is_idle
        if is_idle and (before.step == SETUP or len(before.merged) >= MAX_HELD):
            self.cancel()
            return
        self._previous = None
        self._state = _ENDED if is_idle else _RUNNING
        self._merge([before])

    def _back_to_setup(self) -> None:
        """Of what was fetched so far, nothing was for a step."""
        self._state = _ENDED if self._previous is None else _OPENED
        self.cancel()
        self.step, self.unended_batches = SETUP, 0
        self.epoch = self._epoch_count = 0
        self._read_all = False
        self.supply.ask()
        self.fetches = FetchSteps()

    def _mark_first(self) -> None:
        held = self.fetches.marked()
        self.steps_by = _MARKS
        if self.step == SETUP:
            return
        self.cancel()
        self._state = _RUNNING
        self._merge(held)
        if held and self._early:  # of a validation that became part of it, no epoch is left
            *others, own = self._early
            self.epoch_shift = sum(one is not own and one is not None for one in others)

    def _close_fetched(self, step: bytes) -> None:
        self.closed.extend(self.fetches.close(ClosedStep(step)))

    def _merge(self, held: list[ClosedStep]) -> None:
        """What was taken for steps belongs to the step that goes on."""
        if not held:
            return
        self._switch(self.phase)
        for step in held:
            self._phase_ns = _added(step.phase_ns, self._phase_ns)
            self._switches += step.switches
            self._unexplained += step.unexplained
        before = (serial for step in held for serial in step.serials)
        self._merged = (*before, *(self._merged or ()))
        self._start_ns = held[0].start_ns
        self.step, self.epoch = held[0].step, held[0].epoch


def _added(one: list[int], other: list[int]) -> list[int]:
    """Times of phases together; between the two, phases may have got names."""
    return [a + b for a, b in zip_longest(one, other, fillvalue=0)]
