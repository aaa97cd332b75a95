"""Loaders that nobody has named: which the loop in this thread trains on, by what it asks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trainobs.core.abi import Phase
from trainobs.hooks.batch_matcher import fetches_ahead, is_made_by_a_generator
from trainobs.hooks.datasets import data_roots_of
from trainobs.hooks.loader_facts import KnownLoaders, worker_count
from trainobs.hooks.loader_pass import LoaderPass, passes, serials
from trainobs.hooks.loop_pass import Fetch, LoopPass, reads_ahead
from trainobs.hooks.watch import Loader, LoaderWatch
from trainobs.integrations.found_steps import StepFinder
from trainobs.session.session import Session
from trainobs.steps.clock import StepClock


class FoundPass(LoopPass):
    """A pass that the loop is taken to go to wherever it fetches with gradients.

    Args:
        clock: of the training thread.
        asked: called as it does; returns whether the loop goes to it indeed.
        of: see `LoopPass`.
        by_generator: whether one goes between it and the loop. If that fetches for a step twice,
            it may fetch ahead.
    """

    __slots__ = ("_asked", "_by_generator")

    def __init__(
        self,
        clock: StepClock,
        asked: Callable[[FoundPass], bool],
        of: object | None = None,
        *,
        by_generator: bool = False,
    ) -> None:
        super().__init__(clock, of, found=True)
        self._asked = asked
        self._by_generator = by_generator

    def look(self) -> None:
        """Say whether the loop goes to it. That its iterator is made is no wait for its batches."""
        clock = self.clock
        trains = torch.is_grad_enabled() and clock.phase != Phase.VALIDATION.value
        self.loop = trains and self._asked(self)
        has_fetched = self.leads >= 0
        self.unmatched |= self._by_generator and has_fetched and not clock.is_idle

    def _look(self) -> None:
        self.look()
        if self.loop:
            self.clock.measured.add(Phase.LOADER.value)


class UnnamedLoaders(LoaderWatch):
    """Takes each loader of torch's that is asked with gradients for the loop's, until one is named.

    Where the loop marks its steps by `with`, no fetch opens one, and what they wait for is all that
    is known of fetches. Nor is it known which step gets a batch that a library fetches ahead.

    Args:
        take: told of such a loader, once.
        session: of the run.
        on_fault: see `LoaderListener`.
    """

    def __init__(
        self, take: Callable[[Any], object], session: Session, on_fault: Callable[[], None]
    ) -> None:
        self._take = take
        self._taken = KnownLoaders()
        self._is_named = self._is_marked = False
        super().__init__(session.clock, session.ledger, session.info, on_fault=on_fault)

    def observe(self, loader: Loader) -> Loader:
        """A loader that is named: no other is taken for the loop's any more."""
        if not self._is_named:
            self._is_named = True
            self.observed.clear()
            if self.clock.no_steps:  # it may have gone through another one for its data, as `list`
                self.clock.measured.discard(Phase.LOADER.value)
            self.clock.by_loaders()
        return super().observe(loader)

    def marked(self) -> None:
        """The loop marks steps by `with`: no fetch opens one, unless of a loader that is named."""
        self._is_marked = True
        if not self._is_named and self.clock.fetches.leader is None:  # a look at the data was all
            self.clock.measured.discard(Phase.LOADER.value)

    def starts(self, loader: Any) -> LoopPass | Fetch:
        """See `LoaderListener`."""
        if self._is_named:
            return super().starts(loader)
        known = self.add(loader)
        by_generator = is_made_by_a_generator()
        asked = partial(self._asked, known)
        loop = FoundPass(self.clock, asked, known, by_generator=by_generator)
        loop.unmatched = fetches_ahead()
        loop.look()
        loop.start(reads=reads_ahead(loader))
        return loop

    def _asked(self, of: weakref.ref[Any], loop: FoundPass) -> bool:
        if self._is_named:
            return False
        if self._is_marked:
            loop.aside = loop.unmatched = True
        loader = of()
        if loader is not None and self._taken.is_new(loader):
            self._take(loader)
        return True


class FoundLoaders(LoaderWatch):
    """Takes what the main thread gets from torch's loaders for what the loop trains on.

    What it gets without gradients (a validation) belongs to the step that goes on.

    Args:
        finder: told of fetches.
        take: told of a loader as a pass over it begins.
        session: of the run.
        on_fault: see `LoaderListener`.
    """

    def __init__(
        self,
        finder: StepFinder,
        take: Callable[[Any], object],
        session: Session,
        on_fault: Callable[[], None],
    ) -> None:
        self._finder = finder
        self._take = take
        self._session = session
        super().__init__(session.clock, session.ledger, session.info, on_fault=on_fault)

    def join(self, *, finds_data: bool) -> None:
        """Follow the passes that go on already: nothing tells of them but that they are there."""
        for found in gc.get_objects():
            if issubclass(type(found), _BaseDataLoaderIter) and id(found) not in passes:
                at = LoaderPass(next(serials), int(found._num_workers))
                at.keep_for(found)
                at.go_with(self, self._pass_of(at.workers))
                if finds_data:
                    self._session.add_data_roots(data_roots_of(found._dataset))

    def observe(self, loader: Any) -> Any:
        """Any loader whose iterators are torch's."""
        self.add(loader)
        return loader

    def starts(self, loader: Any) -> LoopPass | Fetch:
        """See `LoaderListener`."""
        if not torch.is_grad_enabled():
            return Fetch(self.clock, opens=False)
        self._finder.leave()
        self._take(loader)
        loop = self._pass_of(worker_count(loader), self.observed[id(loader)])
        loop.loop = True
        loop.start(reads=reads_ahead(loader))
        return loop

    def _pass_of(self, workers: int, of: object | None = None) -> FoundPass:
        loop = FoundPass(self.clock, partial(self._asked, workers), of)
        loop.unmatched = True
        return loop

    def _asked(self, workers: int, _: FoundPass) -> bool:
        self._session.note_workers(workers)
        self._finder.fetching()
        return True
