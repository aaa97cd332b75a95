"""A loader that tells the step clock when it is asked for a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trainobs.core.abi import Phase
from trainobs.hooks.watch import LoaderWatch
from trainobs.steps.clock import StepClock

Batch = TypeVar("Batch")


class ObservedLoader(Generic[Batch]):
    """Stands for a loader, whose class and attributes it shows; the loader itself is not changed.

    Inside another phase (a validation) its fetches are timed as waiting and open no step.
    """

    def __init__(
        self, loader: Iterable[Batch], clock: StepClock, watch: LoaderWatch | None = None
    ) -> None:
        self._loader = loader
        self._clock = clock
        self._watch = watch

    @staticmethod
    def inside(loader: Iterable[Batch]) -> Iterable[Batch]:
        """What is observed, if a loader is already: a cell of a notebook may run again."""
        return loader._loader if type(loader) is ObservedLoader else loader

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """So that `isinstance` answers as for the loader.

        What is not known for a loader is passed over in silence by those that prepare loaders:
        Accelerate would let each rank train on all of the data.
        """
        return type(self._loader)

    def __reduce__(self) -> tuple[type, tuple[Iterable[Batch], StepClock, LoaderWatch | None]]:
        """Without this, pickle would make an object of the class that it shows."""
        return ObservedLoader, (self._loader, self._clock, self._watch)

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the loader; starting its workers counts as waiting for it."""
        self._clock.measured.add(Phase.LOADER.value)
        if self._clock.in_phase:
            return self._inner_batches()
        return self._batches()

    def __len__(self) -> int:
        """Batches of the loader, if it is sized."""
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        """Everything else is the loader's."""
        if name == "_loader":  # not there yet in a copy
            raise AttributeError(name)
        return getattr(self._loader, name)

    def _batches(self) -> Iterator[Batch]:
        this_pass = object()
        trains = torch.is_grad_enabled()
        leads = self._clock.fetches.lead(this_pass, trains=trains, of=self._loader)
        try:
            yield from self._led_batches(leads)
        finally:
            self._clock.fetches.follow(this_pass)

    def _led_batches(self, leads: bool) -> Iterator[Batch]:
        clock = self._clock
        epoch = clock.begin_epoch() if leads or not clock.fetches.on else None
        clock.begin_fetch(leads)
        try:
            batches = iter(self._loader)
        finally:
            clock.end_fetch()
        while True:
            clock.begin_fetch(leads)
            try:
                batch = self._next(batches)
            except StopIteration:
                clock.end_fetch()
                clock.cancel()
                return
            except BaseException:
                clock.end_fetch()
                raise
            clock.end_fetch()
            clock.begin_batch(epoch=epoch, leads=leads)
            yield batch

    def _next(self, batches: Iterator[Batch]) -> Batch:
        """The next batch, of which the watch is told that it goes to the step that begins now."""
        watch = self._watch
        if watch is None or not isinstance(batches, _BaseDataLoaderIter):
            return next(batches)
        watch.delivering = True
        try:
            batch: Batch = next(batches)
            return batch
        finally:
            watch.delivering = False

    def _inner_batches(self) -> Iterator[Batch]:
        batches = iter(self._loader)
        while True:
            self._clock.enter(Phase.LOADER)
            try:
                batch = self._next(batches)
            except StopIteration:
                return
            finally:
                self._clock.leave()
            yield batch
