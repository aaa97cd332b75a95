"""Loaders that nobody has named: which the loop in this thread trains on, by what it asks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trainobs.hooks.batch_matcher import fetches_ahead
from trainobs.hooks.datasets import data_roots_of
from trainobs.hooks.loader_pass import LoaderPass, passes, serials
from trainobs.hooks.loop_pass import Fetch, LoopPass
from trainobs.hooks.watch import Loader, LoaderWatch
from trainobs.integrations.found_steps import StepFinder
from trainobs.session.session import Session
from trainobs.steps.clock import StepClock


class UnnamedLoaders(LoaderWatch):
    """Takes each loader of torch's that is asked with gradients for the loop's, until one is named.

    Of a pass of a library that fetches ahead of the loop it is not known which step gets which
    batch.

    Args:
        take: told of such a loader as a pass over it begins.
        session: of the run.
        on_fault: see `LoaderListener`.
    """

    def __init__(
        self, take: Callable[[Any], object], session: Session, on_fault: Callable[[], None]
    ) -> None:
        self._take = take
        self._is_named = False
        super().__init__(session.clock, session.ledger, session.info, on_fault=on_fault)

    def observe(self, loader: Loader) -> Loader:
        """A loader that is named: no other is taken for the loop's any more."""
        if not self._is_named:
            self._is_named = True
            self.observed.clear()
            self.clock.by_loaders()
        return super().observe(loader)

    def starts(self, loader: Any) -> LoopPass | Fetch:
        """See `LoaderListener`."""
        if self._is_named or not torch.is_grad_enabled():
            return super().starts(loader)
        self._take(loader)
        self.add(loader)
        if not fetches_ahead():
            return super().starts(loader)
        loop = _FoundPass(self.clock, lambda: None, self.observed[id(loader)])
        loop.start(reads=bool(getattr(loader, "num_workers", True)))
        return loop


class _FoundPass(LoopPass):
    """A pass that the loop is taken to go to wherever it fetches with gradients.

    Args:
        clock: of the training thread.
        asked: called as it does.
        of: see `LoopPass`.
    """

    __slots__ = ("_asked",)

    def __init__(
        self, clock: StepClock, asked: Callable[[], None], of: object | None = None
    ) -> None:
        super().__init__(clock, of)
        self.found = True
        self._asked = asked

    def over(self) -> None:
        """See `LoopPass`."""
        if self.loop:
            super().over()

    def failed(self) -> None:
        """See `LoopPass`."""
        if self.loop:
            super().failed()

    def _look(self) -> None:
        self.loop = torch.is_grad_enabled()
        if self.loop:
            self._asked()


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
                at = LoaderPass(next(serials), found._num_workers)
                at.keep_for(found)
                at.go_with(self, _FoundPass(self.clock, partial(self._asked, at.workers)))
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
        asked = partial(self._asked, loader.num_workers)
        loop = _FoundPass(self.clock, asked, self.observed[id(loader)])
        loop.start(reads=bool(getattr(loader, "num_workers", True)))
        return loop

    def _asked(self, workers: int) -> None:
        self._session.note_workers(workers)
        self._finder.fetching()
