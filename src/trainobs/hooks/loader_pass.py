"""Where the iterator of a torch loader is: which batch of which worker it gives next.

A loader that keeps the order gives its batch i to worker i % workers, as
`_MultiProcessingDataLoaderIter._try_put_index` of torch does, until one of them has no data any
more. Of other loaders it is not known which worker made which batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import IterableDataset

from trainobs.core.abi import MAIN_WORKER
from trainobs.hooks.loop_pass import LoopPass
from trainobs.hooks.marks import Marks
from trainobs.steps.ledger import Key


@dataclass(slots=True)
class LoaderPass:
    """A pass over a loader, by one iterator.

    Attributes:
        loader: serial of the loader, as its workers say it.
        workers: how many; 0: the training thread makes the batches.
        exact: whether the next batch is known to be `number`.
        marks: for batches that the training thread makes.
        until_one_ends: whether it is exact only until a worker has no data any more: each worker
            of a loader with an iterable data set makes what it has, in turn.
        loops: the same pass as the clock of each watch hears of it; by the identity of the watch.
    """

    loader: int
    workers: int
    exact: bool = False
    marks: Marks | None = None
    number: int = 0
    passes: int = 0
    until_one_ends: bool = False
    loops: dict[int, LoopPass] = field(default_factory=dict)

    @classmethod
    def first(cls, iterator: Any, loader: Any, serial: int, *, marked: bool) -> LoaderPass:
        """The first pass by a new iterator, whose batches are marked or not.

        One that takes up a pass in the middle, as torchdata's do, goes on with any worker.
        """
        begins = not loader.num_workers or not getattr(iterator, "_num_yielded", 0)
        made = cls(serial, loader.num_workers, marked and begins and _is_exact(loader))
        if marked and not made.workers:
            made.marks = Marks(MAIN_WORKER, serial)
        made.until_one_ends = bool(made.workers) and isinstance(loader.dataset, IterableDataset)
        return made

    def again(self, loader: Any, *, marked: bool) -> None:
        """Persistent workers were told to begin again."""
        self.passes += 1
        self.number = 0
        self.exact = marked and _is_exact(loader)
        self.loops.clear()

    def begin(self) -> None:
        """A batch is asked for."""
        if self.marks:
            self.marks.begin(self.passes, self.number)

    def take(self, iterator: Any, batch: object) -> Key | None:
        """The iterator gave a batch; returns which one, if that is known."""
        if self.marks:
            self.marks.end(batch)
        if self.until_one_ends and not all(getattr(iterator, "_workers_status", (False,))):
            self.exact = False
        number = self.number
        self.number += 1
        if not self.exact:
            return None
        if not self.workers:
            return self.loader, self.passes, MAIN_WORKER, number
        return self.loader, self.passes, number % self.workers, number // self.workers

    def void(self, *, over: bool) -> None:
        """It gave none: it is over, or an exception came, after which all is anybody's guess."""
        self.exact = self.exact and over
        if self.marks:
            self.marks.void()


passes: WeakKeyDictionary[Any, LoaderPass] = WeakKeyDictionary()
"""Iterators that were made while somebody watched."""

serials = count(1)
"""Of loaders; a loader has another one with each iterator."""


def _is_exact(loader: Any) -> bool:
    """Whether its batches come in turn; torch 2.5 knows no other way."""
    return not loader.num_workers or getattr(loader, "in_order", True)
