"""The step clock: from what the training loop does to marks, phase times and closed steps.

A step reaches from its first fetch to the first fetch of the next step, so steps leave no gap and
what lies between them (validation, a checkpoint, logging) belongs to the step before. The fetch
that finds a loader exhausted opens no step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import zip_longest

from trainobs.core.abi import Phase
from trainobs.core.records import SETUP
from trainobs.steps.closed_step import ClosedStep
from trainobs.steps.fetch_steps import FetchSteps

_PHASES = len(Phase)
_LOADER = Phase.LOADER.value
_OTHER = Phase.OTHER.value
_ASIDE = (Phase.VALIDATION.value, Phase.CHECKPOINT.value, Phase.LOGGING.value)

MAX_NAMED = 16
"""Phases with a name of the user's; each is a column."""

LAST_STEP = 2**62
"""Largest number of a step: well within the 64 bits that the run log has for it."""

_new = tuple.__new__

StepWord = memoryview | list[int]
"""Where the kernel reads `serial << 8 | phase`, at index 0, and at 1 the epoch that files are read
for; a list of one number where no kernel reads."""


class StepClock:
    """Marks the current step and phase for the kernel, and times both.

    Used by the training thread only. A switch of phase is two reads of the clock's own fields, one
    clock read and one store into shared memory: no system call, no lock.

    Attributes:
        closed: steps that are over, oldest first, for the collector to take.
        measured: phases that somebody marks; time in another one is not 0 but unknown.
        named: names of the phases that have one of the user's; their numbers follow on `Phase`. The
            kernel takes those that it does not know for `OTHER`.
        over: whether the last step is closed.
        phase: the phase that the loop is in; to be read.
        serial: of the step that the kernel counts for: 0 is the set-up; to be read.
        step: number of the current step, as the loop counts; `SETUP` before the first; to be read.
        fetches: whether fetches end steps, where nobody marks them.
        unended_batches: batches of a loop that has not ended any step.
        on_cancel: called with the serial of an opened step that was none, and of the step that
            goes on; for the collector, since the kernel counted some of the one in the other.
        on_switch: called with the serial and the phase at each switch, where phases are timed on
            a GPU as well.
    """

    # Slots: CPython takes a tenth longer for attributes in a dictionary of 30 or more. There is one
    # for what somebody puts in the place of a method.
    __slots__ = (
        "__dict__",
        "_done",
        "_epoch_count",
        "_no_time",
        "_ever_stepped",
        "_explained",
        "_finished",
        "_now",
        "_on_close",
        "_outer",
        "_phase_ns",
        "_previous",
        "_sample",
        "_since_ns",
        "_start_ns",
        "_stepped_in_epoch",
        "_switches",
        "_unexplained",
        "_word",
        "closed",
        "epoch",
        "fetches",
        "measured",
        "named",
        "on_cancel",
        "on_switch",
        "over",
        "phase",
        "serial",
        "step",
        "unended_batches",
    )

    def __init__(
        self,
        word: StepWord,
        *,
        sample: Callable[[], object] | None = None,
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
        self.closed: deque[ClosedStep] = deque()
        self.on_cancel: Callable[[int, int], None] | None = None
        self.on_switch: Callable[[int, int], None] | None = None
        self.epoch = 0
        self.over = False
        self.measured = {_OTHER}
        self.named: list[str] = []
        self.fetches = FetchSteps()
        self._epoch_count = 0
        self._stepped_in_epoch = False
        self._ever_stepped = False
        self.unended_batches = 0
        self._word: StepWord = word
        self._sample = sample
        self._on_close = on_close
        self._now = now
        self.serial = 0
        self.step = SETUP
        self._start_ns = self._since_ns = now()
        self.phase = _OTHER
        self._outer: list[int] = []
        self._no_time = [0] * _PHASES
        self._phase_ns = self._no_time.copy()
        self._switches = 0
        self._unexplained = 0
        self._explained = True  # there is no wait yet
        self._done = True  # the set-up is over as soon as a step begins
        self._previous: ClosedStep | None = None
        self._finished = False
        self._mark()

    def enter(self, phase: int) -> None:
        """Begin a phase inside the current one, whose time stops meanwhile."""
        if phase == _LOADER:
            self._unexplained += 1
            self._explained = False
        self._outer.append(self.phase)
        self._switch(phase)

    def explain(self) -> None:
        """It is known what the wait for the loader that goes on is for."""
        if not self._explained:
            self._explained = True
            self._unexplained -= 1

    def doubt(self) -> None:
        """Of the wait for the loader that goes on, some part is for something unknown."""
        self._unexplained += 1

    def leave(self) -> None:
        """End the phase entered last; without one, nothing happens."""
        if self._outer:
            self._switch(self._outer.pop())

    def name_phase(self, name: str) -> int | None:
        """Number of a phase with a name of the user's; None if there are too many already."""
        if name not in self.named:
            if len(self.named) == MAX_NAMED:
                return None
            self._no_time.append(0)
            self._phase_ns.append(0)
            self.named.append(name)
        return _PHASES + self.named.index(name)

    @property
    def in_phase(self) -> bool:
        """Whether a phase was entered and not left."""
        return bool(self._outer)

    @property
    def goes_on_ns(self) -> int:
        """What the step that goes on has taken, without phases that are no part of training."""
        return self._now() - self._start_ns - sum(self._phase_ns[phase] for phase in _ASIDE)

    def begin_epoch(self) -> int:
        """Number, from 0, of the epoch that begins: for loops that do not count epochs.

        A loader that begins beside another, before a step was done, is of the same epoch.
        """
        if self._stepped_in_epoch or self._epoch_count == 0:
            self._epoch_count += 1
            self._stepped_in_epoch = False
        return self._epoch_count - 1

    def begin_reading(self) -> None:
        """A pass over the training data is about to begin, and its workers with it."""
        begins = self._stepped_in_epoch or self._epoch_count == 0
        self.read_for(self._epoch_count if begins else self._epoch_count - 1)

    def read_for(self, epoch: int) -> None:
        """Tell the kernel for which epoch files are read from now on."""
        if len(self._word) > 1:
            self._word[1] = epoch

    def begin_fetch(self, leads: bool = True) -> None:
        """A batch is about to be asked for: after a finished step, a new one begins here.

        Args:
            leads: whether this fetch ends the step before, where fetches do; one that does not
                belongs to the step that goes on.
        """
        if self.fetches.on:
            if leads and self.step != SETUP and not self._outer:
                self.end_step()
        else:
            leads = True
        if leads and self._done and self._previous is None:
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
        self, step: int | None = None, epoch: int | None = None, leads: bool = True
    ) -> None:
        """A batch is there: the step that its fetch opened is real.

        Args:
            step: its number; by default one more than the step before.
            epoch: its epoch, if the loop counts them.
            leads: as its fetch.
        """
        if self._done and (leads or not self.fetches.on):
            if self._previous is None:
                self._open(self.phase)
            if self.step < LAST_STEP:
                self.step += 1
            self._done = False
            self._publish()
        if not self._ever_stepped:
            self.unended_batches += 1
        if step is not None:
            self.step = step
        if epoch is not None:
            self.epoch = epoch

    def begin_step(self, number: int | None = None) -> None:
        """A step is marked, and from now on fetches end none."""
        if self.fetches.on:
            held = self.fetches.marked()
            if self.step != SETUP:
                self.cancel()
                self._done = False
                self._merge(held)
        self.begin_batch(number)

    def cancel(self) -> None:
        """No batch came: what was opened goes back to the step before."""
        before = self._previous
        if before is None:
            return
        self._switch(self.phase)
        self._phase_ns = _added(before.phase_ns, self._phase_ns)
        self._switches += before.switches
        self._unexplained += before.unexplained
        cancelled = self.serial
        self.serial, self._start_ns, self._previous = before.serial, before.start_ns, None
        self.fetches.merged = before.merged
        self._mark()
        if self.on_cancel:
            self.on_cancel(cancelled, before.serial)

    def join(self) -> None:
        """A step goes on as the clock begins: it is part of the set-up."""
        self._done = False

    def end_step(self) -> None:
        """The optimizer has stepped: the next fetch or batch opens a new step."""
        self._done = self._stepped_in_epoch = self._ever_stepped = True
        self.unended_batches = 0

    def finish(self) -> None:
        """Close the last step; the clock is of no use afterwards. May be called twice."""
        if self._finished:
            return
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

    def _open(self, phase: int) -> None:
        """Begin the next step, in a phase, with one look at the time and one store for both."""
        now = self._now()
        phase_ns = self._phase_ns
        phase_ns[self.phase] += now - self._since_ns
        # What ClosedStep(...) does, in half the time: without its detour through Python.
        self._previous = _new(
            ClosedStep,
            (
                self.serial,
                self.step,
                self.epoch,
                self._start_ns,
                now,
                phase_ns,
                self._switches + 1,
                self._sample() if self._sample else None,
                self._unexplained,
                self.fetches.merged,
            ),
        )
        self._start_ns = self._since_ns = now
        self.phase = phase
        self._phase_ns = self._no_time.copy()
        self.fetches.merged = ()
        self._switches = 0
        self._unexplained = 0
        self._explained = True
        self.serial += 1
        self._mark()
        if self.on_switch is not None:
            self.on_switch(self.serial, phase)

    def _publish(self) -> None:
        previous, self._previous = self._previous, None
        if previous is None:
            return
        if self.fetches.on:
            self.closed.extend(self.fetches.close(previous))
        else:
            self.closed.append(previous)
        if self._on_close:
            self._on_close()

    def _merge(self, held: list[ClosedStep]) -> None:
        """What was taken for steps belongs to the step that goes on."""
        if not held:
            return
        self._switch(self.phase)
        for step in held:
            self._phase_ns = _added(step.phase_ns, self._phase_ns)
            self._switches += step.switches
            self._unexplained += step.unexplained
        self.fetches.merged = tuple(step.serial for step in held)
        self._start_ns = held[0].start_ns
        self.step, self.epoch = held[0].step, held[0].epoch

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


def _added(one: list[int], other: list[int]) -> list[int]:
    """Times of phases together; between the two, phases may have got names."""
    return [a + b for a, b in zip_longest(one, other, fillvalue=0)]
