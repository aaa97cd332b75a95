"""Where the steps of a loop begin that marks none, by what torch does in the thread that trains."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trainobs.core.abi import Phase
from trainobs.hooks.datasets import data_roots_of
from trainobs.hooks.loader_pass import LoaderPass, passes, serials
from trainobs.hooks.loop_pass import Fetch, LoopPass
from trainobs.hooks.watch import LoaderWatch
from trainobs.session.session import Session
from trainobs.steps.clock import StepClock

_OPTIMIZER = Phase.OPTIMIZER.value

ALONE = 8
"""Steps of optimizers, without a fetch, after which a loop is one without torch's loaders."""

PATIENCE_FETCHES, PATIENCE_S = 64, 10.0
"""Fetches, and time, after which a loop without a step of an optimizer has none of torch's."""

BY_OPTIMIZER = "a step begins with the first fetch of a batch after an optimizer has stepped"
BY_FETCH = "each fetch of a batch begins a step: no optimizer of torch's steps"
BY_ONE_OPTIMIZER = "a step begins as an optimizer has stepped: no loader of torch's is asked"


class StepFinder:
    """Tells a clock where steps begin, by the optimizers and the loaders of the main thread.

    Which rule fits is found once, as `attach/rule.py` does it from outside; there, a step is seen
    to begin by the same events.

    Args:
        clock: of this thread.
        found: told what a step is, once that is known.
        on_fault: called while a fault of ours is handled.
    """

    def __init__(
        self, clock: StepClock, found: Callable[[str], None], on_fault: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._found = found
        self._on_fault = on_fault
        self._thread = threading.get_ident()
        self._began_s = time.monotonic()
        self._rule = ""
        self._fetches = self._steps = 0
        self._optimizing = False
        self._one: Callable[[], object] = lambda: None
        self._handles: Sequence[Any] = ()
        clock.join()

    def watch_optimizers(self) -> None:
        """Be told of all optimizers of torch's, from now on."""
        before, after = self._guarded(self._stepping), self._guarded(self._stepped)
        self._handles = (
            register_optimizer_step_pre_hook(before),
            register_optimizer_step_post_hook(after),
        )

    def close(self) -> None:
        """Be told of nothing any more."""
        for handle in self._handles:
            handle.remove()
        self.leave()

    def leave(self) -> None:
        """No optimizer steps any more, also where its step has raised."""
        if self._optimizing:
            self._optimizing = False
            self._clock.leave()

    def fetching(self) -> None:
        """The loop asks for a batch."""
        self.leave()
        self._fetches += 1
        if self._rule:
            return
        if self._steps:
            self._settle(BY_OPTIMIZER)
        elif self._fetches > PATIENCE_FETCHES and time.monotonic() - self._began_s > PATIENCE_S:
            self._clock.by_fetches = True
            self._clock.end_step()
            self._settle(BY_FETCH)

    def _guarded(self, hook: Callable[[object], None]) -> Callable[..., None]:
        def hooked(optimizer: object, *_: object) -> None:
            if threading.get_ident() != self._thread:
                return
            try:
                hook(optimizer)
            except Exception:
                self._on_fault()

        # Where torch compiles what calls an optimizer, it would look into ours as well.
        if "torch._dynamo" in sys.modules:
            return torch.compiler.disable(hooked)  # type: ignore[no-any-return, no-untyped-call]
        return hooked

    def _stepping(self, _: object) -> None:
        self.leave()
        self._clock.measured.add(_OPTIMIZER)
        self._clock.enter(_OPTIMIZER)
        self._optimizing = True

    def _stepped(self, optimizer: object) -> None:
        self.leave()
        self._steps += 1
        if not self._rule and not self._fetches and self._steps > ALONE:
            self._settle(BY_ONE_OPTIMIZER)
        if self._rule == BY_ONE_OPTIMIZER:
            if self._one() is None:
                self._one = weakref.ref(optimizer)
            if self._one() is optimizer:
                self._clock.end_step()
                self._clock.begin_batch()
        elif self._rule != BY_FETCH:
            self._clock.end_step()

    def _settle(self, rule: str) -> None:
        self._rule = rule
        self._found(rule)


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
        on_fault: see `Told`.
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
        self.observed[id(loader)] = weakref.ref(loader, partial(self._forget, id(loader)))
        return loader

    def starts(self, loader: Any) -> LoopPass | Fetch:
        """See `Told`."""
        if not torch.is_grad_enabled():
            return Fetch(self.clock, opens=False)
        self._finder.leave()
        self._take(loader)
        asked = partial(self._asked, loader.num_workers)
        loop = _FoundPass(self.clock, asked, self.observed[id(loader)])
        loop.start()
        return loop

    def _asked(self, workers: int) -> None:
        self._session.note_workers(workers)
        self._finder.fetching()

    def _forget(self, name: int, _: object) -> None:
        self.observed.pop(name, None)
