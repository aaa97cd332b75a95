"""A pass of the training loop over a loader, as the step clock hears of it."""

from __future__ import annotations

from contextlib import suppress

import torch

from trainobs.core.abi import Phase
from trainobs.steps.clock import StepClock


class LoopPass:
    """Tells a clock of one pass over a loader that was given to `obs.loader`.

    What is begun, by `start` or `ask`, is ended by `made`, `got`, `over` or `failed`. A pass that
    begins inside another phase (a validation) is timed as waiting, and opens no step.

    Args:
        clock: of the training thread.
        of: what stands for the loader (`FetchSteps.lead`).

    Attributes:
        delivers: the step that fetches a batch gets this very one.
        ended: whether there was no batch any more.
    """

    delivers = True

    __slots__ = ("_aside", "_clock", "_epoch", "_leads", "_name", "_of", "ended")

    def __init__(self, clock: StepClock, of: object | None = None) -> None:
        self.ended = False
        self._name = object()  # whoever leads is kept: not this object, whose end is to be seen
        self._clock = clock
        self._of = of
        clock.measured.add(Phase.LOADER.value)
        self._aside = clock.in_phase
        self._leads: bool | None = None  # nothing was asked for yet
        self._epoch: int | None = None

    def __del__(self) -> None:
        """A loop that breaks off lets go of its iterator, and of nothing else."""
        with suppress(Exception):  # of a run that a fault has ended
            self.let_go()

    def let_go(self) -> None:
        """Nobody goes on with it: another pass may lead."""
        self._clock.fetches.follow(self._name)

    def start(self) -> None:
        """The iterator is about to be made, and its workers with it."""
        if self._aside:
            self._clock.enter(Phase.LOADER.value)
        else:
            trains = torch.is_grad_enabled()
            leads = self._clock.fetches.may_lead(trains=trains, of=self._of)
            if leads:
                self._clock.begin_reading()
            self._clock.begin_fetch(leads)

    def made(self) -> None:
        """The iterator is there."""
        self._clock.leave()

    def ask(self) -> None:
        """The loop asks for a batch."""
        if self._aside:
            self._clock.enter(Phase.LOADER.value)
            return
        fetches = self._clock.fetches
        if self._leads is None:
            trains = torch.is_grad_enabled()
            self._leads = fetches.lead(self._name, trains=trains, of=self._of)
            if self._leads or not fetches.on:
                self._epoch = self._clock.begin_epoch()
        elif self._leads:  # another pass over the same loader may have taken over
            self._leads = fetches.leader is self._name
        self._clock.begin_fetch(self._leads)

    def got(self) -> None:
        """The batch is there."""
        self._clock.leave()
        if not self._aside:
            self._clock.begin_batch(None, self._epoch, bool(self._leads))

    def over(self) -> None:
        """There was no batch any more."""
        self.ended = True
        self._clock.end_fetch()
        if not self._aside:
            self._clock.cancel()
            self.let_go()
            self._leads = False  # if somebody asks again

    def failed(self) -> None:
        """An exception came, after which a loader of torch goes on."""
        self._clock.end_fetch()
