"""Fetches from a loader, as the step clock hears of them."""

from __future__ import annotations

import torch

from trainobs.core.abi import Phase
from trainobs.steps.clock import StepClock
from trainobs.steps.fast_path import FetchListener
from trainobs.steps.states import StepsBy


class Fetch(FetchListener):
    """Tells a clock of fetches that a framework makes, or that somebody makes beside the loop.

    Args:
        clock: of the training thread.
        opens: whether a fetch outside every phase is waiting, and opens a step.
    """

    __slots__ = ()

    def __init__(self, clock: StepClock, *, opens: bool) -> None:
        super().__init__()
        self.clock = clock
        self.opens = opens

    def failed(self) -> None:
        """The loader has answered, with no batch."""
        if self.opened:
            self.clock.end_fetch()

    made = over = failed


def reads_ahead(loader: object) -> bool:
    """Whether data may be read as an iterator is made: not where there are no workers."""
    return bool(getattr(loader, "num_workers", True))


class LoopPass(FetchListener):
    """Tells a clock of one pass over a loader that was given to `obs.loader`.

    What is begun, by `start` or `ask`, is ended by `made`, `got`, `over` or `failed`. A pass that
    begins inside another phase is timed as waiting, and opens no step. One of a validation is not:
    in its phase, or without gradients once there was one with.

    Args:
        clock: of the training thread.
        of: what stands for the loader (`FetchSteps.lead`).
        found: see `FetchListener`; the loop goes to it where `_look` says so.

    Attributes:
        ended: whether there was no batch any more.
    """

    __slots__ = ("_of", "ended")

    def __init__(self, clock: StepClock, of: object | None = None, *, found: bool = False) -> None:
        super().__init__()
        self.ended, self.found = False, found
        if not found:
            is_validation = clock.fetches.has_led and not torch.is_grad_enabled()
            in_validation = clock.phase == Phase.VALIDATION.value
            self.loop = not in_validation and not is_validation
            clock.measured.add(Phase.LOADER.value)
            clock.fetches.validated |= in_validation
        self._name = object()  # whoever leads is kept: not this object, whose end is to be seen
        self.clock = clock
        self._of = of
        self.aside = clock.in_phase

    def drop(self) -> None:
        """Let go as an object does that ends, maybe with the interpreter: without exceptions."""
        try:  # by then there is no `suppress` any more
            self.let_go()
        except Exception:  # of a run that a fault has ended
            return

    def __del__(self) -> None:
        """A loop that breaks off lets go of its iterator, and of nothing else."""
        self.drop()

    def let_go(self) -> None:
        """Nobody goes on with it: another pass may lead."""
        self.clock.fetches.follow(self._name)

    def start(self, *, reads: bool = True) -> None:
        """The iterator is about to be made, and its workers with it.

        Args:
            reads: whether something may be read before the first batch is asked for: an iterator
                without workers may be made long before its epoch, or for none.
        """
        if not self.loop:
            return
        if self.aside:
            self.clock.enter(Phase.LOADER.value)
        else:
            self.clock.begin_pass()
            trains = torch.is_grad_enabled()
            leads = self.clock.fetches.may_lead(trains=trains, of=self._of)
            if leads and reads:
                self.clock.begin_reading()
            self.clock.begin_fetch(leads)

    def made(self) -> None:
        """The iterator is there."""
        if self.loop:
            self.clock.leave()

    def _ask_first(self) -> None:
        clock = self.clock
        if self.aside:
            self.leads = False
            clock.fetches.in_phases |= not (self.found and self.unmatched)
            # A loop inside of a phase fetches for the step after the one that goes on.
            self.unmatched |= not clock.fetches.has_led
            return
        clock.begin_pass()
        trains = torch.is_grad_enabled()
        self.leads = clock.fetches.lead(self._name, trains=trains, of=self._of)
        if self.leads:
            clock.begin_reading()
        if self.leads or clock.steps_by == StepsBy.MARKS:
            self.epoch = clock.begin_epoch(self._of)

    def over(self) -> None:
        """There was no batch any more."""
        self.ended = True
        if not self.loop:
            return
        clock = self.clock
        clock.end_fetch()
        if not self.aside:
            clock.end_pass(leads=bool(self.leads))
            self.let_go()
            self.leads = False  # if somebody asks again

    def failed(self) -> None:
        """An exception came, after which a loader of torch goes on."""
        if self.loop:
            self.clock.end_fetch()
