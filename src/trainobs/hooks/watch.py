"""Watching loaders: which batch each fetch got, how long the loop waited, when workers start."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any, TypeVar

from trainobs.core.records import RunInfo
from trainobs.hooks import wrapping
from trainobs.hooks.given_tensors import GivenTensors
from trainobs.hooks.loader_listener import FetchLedger, LoaderListener
from trainobs.hooks.loader_pass import passes
from trainobs.hooks.object_proxy import inner_of
from trainobs.hooks.observed_loader import ObservedIterator, ObservedLoader
from trainobs.session.forks import register_fork_cleanup, unregister_fork_cleanup
from trainobs.steps.clock import StepClock

Loader = TypeVar("Loader", bound=Iterable[Any])


class LoaderWatch(LoaderListener):
    """Is told what the loaders of this process do, until `close`; see `LoaderListener`."""

    def __init__(
        self, clock: StepClock, ledger: FetchLedger, info: RunInfo, **options: Any
    ) -> None:
        super().__init__(clock, ledger, info, **options)
        ledger.watched = True
        register_fork_cleanup(self)
        wrapping.tell(self)

    def observe(self, loader: Loader) -> Loader:
        """Take a loader for one that the loop goes to: its fetches are timed, and begin the steps.

        Returns:
            The loader itself if it is torch's; else what stands for it, and has its class.
        """
        given = inner_of(loader)
        if wrapping.is_told_of(given):
            self.add(given)
            return given
        kind: Any = ObservedLoader
        if hasattr(type(given), "__next__"):  # what it gives may be torch's, made before
            kind = ObservedIterator
            for at in list(passes.values()):
                GivenTensors.of_watch(self).makes(given, at)
        stand_in: Loader = kind(given, self)
        return stand_in

    def add(self, loader: Any) -> weakref.ref[Any]:
        """Its fetches are the loop's, as long as it is there; returns what stands for it."""
        key = id(loader)
        known = self.observed.get(key)
        if known is None or known() is not loader:
            known = self.observed[key] = weakref.ref(loader, partial(self._forget, key))
        return known

    def _forget(self, key: int, gone: object) -> None:
        if self.observed.get(key) is gone:
            del self.observed[key]

    def close(self) -> None:
        """Watch no more. May be called twice."""
        unregister_fork_cleanup(self)
        self.abandon()
        wrapping.unwrap_if_unwatched()

    def abandon(self) -> None:
        """In a forked child, or after a fault: be told of nothing."""
        super().abandon()
        wrapping.tell_no_more(self)
