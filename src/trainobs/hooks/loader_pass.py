"""Where the iterator of a torch loader is: which batch of which worker it gives next.

A loader that keeps the order gives its batch i to worker i % workers, as
`_MultiProcessingDataLoaderIter._try_put_index` of torch does, until one of them has no data any
more. Of other loaders it is not known which worker made which batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol

from torch.utils.data import IterableDataset

from trainobs.core.abi import MAIN_WORKER
from trainobs.hooks.loader_facts import note_tensors, worker_count
from trainobs.hooks.loader_listener import LoaderListener
from trainobs.hooks.loop_pass import Fetch, LoopPass
from trainobs.hooks.marks import Marks
from trainobs.hooks.sampler_time import next_turn, time_draws
from trainobs.steps.fast_path import PassTracker


class BatchView(Protocol):
    """Is shown the batches of a pass."""

    def fetched(self, at: LoaderPass, number: int, batch: object) -> None:
        """Torch's iterator gave the batch of this number."""


class LoaderPass(PassTracker):
    """A pass over a loader, by one iterator.

    Attributes:
        loader: serial of the loader, as its workers say it.
        workers: how many; 0: the training thread makes the batches.
        passes: how often the iterator began again.
        number: of the next batch.
        exact: whether the next batch is known to be `number`.
        marks: for batches that the training thread makes.
        until_one_ends: whether it is exact only until a worker has no data any more: each worker
            of a loader with an iterable data set makes what it has, in turn.
        shown: those who are shown each batch that it gives, with the pass and its number.
        watches: those who are told, each by its one of `listeners`.
        due: number of the batch from which on something of the pass is to be noted again; 0 of
            one that nobody saw begin, of which nothing is.
    """

    __slots__ = ("__weakref__", "_facts", "_loops", "_of", "_ref", "_turn", "shown")

    def __init__(self, loader: int, workers: int, exact: bool = False) -> None:
        super().__init__()
        self.loader, self.workers, self.exact = loader, workers, exact
        self._facts: Sequence[dict[str, Any]] = ()
        self._loops: dict[int, LoopPass] = {}
        self.shown: Sequence[BatchView] = ()
        self._of: Callable[[], object] = lambda: None

    @classmethod
    def first(cls, iterator: Any, loader: Any, serial: int, *, marked: bool) -> LoaderPass:
        """The first pass by a new iterator, whose batches are marked or not.

        One that takes up a pass in the middle, as torchdata's do, goes on with any worker.
        """
        workers = worker_count(loader)
        begins = not workers or not getattr(iterator, "_num_yielded", 0)
        made = cls(serial, workers, marked and begins and _is_exact(loader))
        made._of = weakref.ref(loader)
        if marked and not made.workers:
            made.marks = Marks(MAIN_WORKER, serial)
        made.until_one_ends = bool(made.workers) and isinstance(loader.dataset, IterableDataset)
        return made

    def keep_for(self, iterator: Any) -> None:
        """Be found in `passes` as long as the iterator is there."""
        key = id(iterator)
        self._ref = weakref.ref(iterator, partial(passes.pop, key))
        passes[key] = self

    def is_of(self, loader: object) -> bool:
        """Whether it goes over this loader."""
        return self._of() is loader

    def again(self, loader: Any, *, marked: bool) -> None:
        """Persistent workers were told to begin again."""
        self.passes += 1
        self.number = 0
        self.exact = marked and _is_exact(loader)
        self._loops.clear()
        self.forget()

    def go_with(self, watch: LoaderListener, loop: LoopPass) -> None:
        """It is a pass of the loop that somebody watches."""
        self._loops[id(watch)] = loop
        self.forget()

    def key_of(self, number: int) -> tuple[int, int]:
        """The worker that makes a batch of this number, and which of its own it is."""
        if not self.workers:
            return MAIN_WORKER, number
        return number % self.workers, number // self.workers

    def forget(self) -> None:
        """Tell nobody, until it is said whom again."""
        self.watches, self.listeners = None, ()

    def _tell(self, watches: Sequence[LoaderListener]) -> None:
        made: list[LoopPass | Fetch] = []
        for watch in watches:
            loop = self._loops.get(id(watch))
            made.append(loop or Fetch(watch.clock, opens=watch.opens_steps))
            made[-1].fetched = watch.ledger.fetched
        self.watches, self.listeners = watches, tuple(made)

    def _look_at(self, iterator: Any) -> None:
        if not all(getattr(iterator, "_workers_status", (False,))):
            self.exact = False

    def begin_noting(self, iterator: Any, facts: Sequence[dict[str, Any]]) -> None:
        """Write down what its batches show, from the first one on; where: `facts`."""
        self._facts, self._turn, self.due, self.shown = facts, 1, 1, ()
        time_draws(iterator, facts, is_first=True)

    def show_to(self, view: BatchView) -> None:
        """Show somebody each batch that is to come."""
        self.shown = (*(one for one in self.shown if one is not view), view)
        if self.due:
            self.due = self.number + 1

    def _note(self, iterator: Any, batch: object) -> None:
        """Write down how many tensors the first batch has; later on, time a turn of draws."""
        for one in self.shown:
            one.fetched(self, self.number - 1, batch)
        if self._turn == 1:
            for noted in self._facts:
                note_tensors(noted, batch)
        elif self.number >= self._turn:
            time_draws(iterator, self._facts)
        if self.number >= self._turn:
            self._turn = next_turn(self.number)
        self.due = self.number + 1 if self.shown else self._turn

    def void(self, *, over: bool) -> None:
        """It gave none: it is over, or an exception came, after which all is anybody's guess."""
        self.exact = self.exact and over
        if self.marks is not None:
            self.marks.void()


passes: dict[int, LoaderPass] = {}
"""Iterators that were made while somebody watched, by their identity."""


def pass_of(iterator: Any) -> LoaderPass:
    """That of an iterator, from now on: nothing is known of one that nobody saw begin."""
    at = passes.get(id(iterator))
    if at is None:
        at = LoaderPass(next(serials), 0)
        at.keep_for(iterator)
    return at


serials = count(1)
"""Of loaders; a loader has another one with each iterator."""


def _is_exact(loader: Any) -> bool:
    """Whether its batches come in turn; torch 2.5 knows no other way."""
    return not loader.num_workers or getattr(loader, "in_order", True)
