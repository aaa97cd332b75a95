"""Watching the loaders of torch: which batch each fetch got, when workers start and end.

While somebody watches, two methods of torch are wrapped: `DataLoader.__iter__`, and `__next__` of
its iterators. Loaders are never changed for longer than it takes to make their iterator: for that
moment they have a `worker_init_fn` that has the workers mark their batches (see `marks`).

A loader that keeps the order gives its batch i to worker i % workers, as
`_MultiProcessingDataLoaderIter._try_put_index` of torch does, until one of them has no data any
more. Of other loaders it is not known which worker made which batch.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trainobs.core.abi import MAIN_WORKER, Phase
from trainobs.core.records import RunInfo
from trainobs.hooks.loader_facts import note_loader
from trainobs.hooks.marks import MarkingInit, Marks
from trainobs.session.forks import abandon_in_children, keep_in_children
from trainobs.steps.clock import StepClock
from trainobs.steps.ledger import Fetch, Key, Ledger

_LOADER = Phase.LOADER.value


@dataclass(slots=True)
class _Pass:
    """Where the iterator of a loader is.

    Attributes:
        loader: serial of the loader, as its workers say it.
        workers: how many; 0: the training thread makes the batches.
        exact: whether the next batch is known to be `number`.
        marks: for batches that the training thread makes.
        until_one_ends: whether it is exact only until a worker has no data any more: each worker
            of a loader with an iterable data set makes what it has, in turn.
    """

    loader: int
    workers: int
    exact: bool
    marks: Marks | None = None
    number: int = 0
    passes: int = 0
    until_one_ends: bool = False

    def take(self, iterator: Any) -> Key | None:
        """Which batch the one that an iterator gave is; it is taken."""
        if self.until_one_ends and not all(getattr(iterator, "_workers_status", (False,))):
            self.exact = False
        number = self.number
        self.number += 1
        if not self.exact:
            return None
        if not self.workers:
            return self.loader, self.passes, MAIN_WORKER, number
        return self.loader, self.passes, number % self.workers, number // self.workers


class LoaderWatch:
    """Tells a clock and a ledger what the loaders of this process do, until `close`.

    Args:
        clock: of the thread that makes this watch; loaders in other threads are passed over.
        ledger: takes the fetches.
        info: of the run; what loaders there are is written into it.
        opens_steps: whether a fetch outside every phase is waiting, and opens a step: where nobody
            else tells the clock of it.

    Attributes:
        delivering: whether what is fetched now goes to the step that fetches it. A loader that
            reads one batch ahead gets it for the next step.
        mixed: whether a fetch may also ask loaders that are not torch's, of which nothing is known.
    """

    def __init__(
        self, clock: StepClock, ledger: Ledger, info: RunInfo, *, opens_steps: bool = False
    ) -> None:
        self.delivering = False
        self.mixed = opens_steps
        self.clock = clock
        self.ledger = ledger
        self.info = info
        self._opens_steps = opens_steps
        self._thread = threading.get_ident()
        ledger.watched = True
        _watches.append(self)
        abandon_in_children(self)
        _wrap()

    def close(self) -> None:
        """Watch no more. May be called twice."""
        keep_in_children(self)
        self.abandon()
        if not _watches:
            _unwrap()

    def abandon(self) -> None:
        """In a forked child: be told of nothing."""
        if self in _watches:
            _watches.remove(self)

    def here(self) -> bool:
        """Whether this is the thread that trains."""
        return threading.get_ident() == self._thread

    def begin(self) -> bool:
        """A loader is asked; whether that has to be ended, too."""
        if not self._opens_steps or self.clock.in_phase:
            return False
        self.clock.begin_fetch()
        return True

    def turned(self, begin_ns: int, end_ns: int) -> None:
        """An iterator was made, or has ended, and with it its workers."""
        if self.clock.phase == _LOADER:
            self.clock.explain()
            self.ledger.turned(self.clock.serial, end_ns - begin_ns)

    def fetched(self, key: Key | None, begin_ns: int, end_ns: int) -> None:
        """A loader has answered with a batch, or with an exception: `key` None."""
        waited = self.clock.phase == _LOADER
        if waited and (key is None or self.mixed):
            self.clock.doubt()
        elif waited:
            self.clock.explain()
        if key is not None:
            fetch = Fetch(self.clock.serial, key, begin_ns, end_ns, waited, self.delivering)
            self.ledger.fetched(fetch)


def _loaders() -> list[type]:
    """The loaders that make iterators of torch in a method of their own."""
    stateful = sys.modules.get("torchdata.stateful_dataloader")
    return [DataLoader, *([stateful.StatefulDataLoader] if stateful else [])]


class _Wrapping:
    """What is wrapped of torch; once undone, a wrapper that somebody holds on to does nothing."""

    def __init__(self) -> None:
        self.live = True
        self._undo: list[tuple[type, str, Callable[..., Any], Callable[..., Any]]] = []
        for loader in _loaders():
            self._wrap(loader, "__iter__", _watched_iter)
        self._wrap(_BaseDataLoaderIter, "__next__", _watched_next)

    def _wrap(self, cls: type, name: str, wrap: Callable[..., Callable[..., Any]]) -> None:
        original = getattr(cls, name)
        wrapper = wrap(original, self)
        setattr(cls, name, wrapper)
        self._undo.append((cls, name, original, wrapper))

    def undo(self) -> None:
        """Put back what was there; what somebody has wrapped since stays."""
        self.live = False
        for cls, name, original, wrapper in self._undo:
            if getattr(cls, name) is wrapper:
                setattr(cls, name, original)

    def watches(self) -> list[LoaderWatch]:
        """Those that are to be told of what this thread does."""
        return [watch for watch in _watches if watch.here()] if self.live else []


_watches: list[LoaderWatch] = []
_wrapped: list[_Wrapping] = []
_passes: WeakKeyDictionary[Any, _Pass] = WeakKeyDictionary()
_serials = count(1)


def _wrap() -> None:
    if not _wrapped:
        _wrapped.append(_Wrapping())


def _unwrap() -> None:
    while _wrapped:
        _wrapped.pop().undo()
    _passes.clear()  # passes that begin from now on go uncounted


def _watched_iter(make: Callable[[Any], Any], wrapping: _Wrapping) -> Callable[[Any], Any]:
    @wraps(make)
    def watched_iter(loader: Any) -> Any:
        watches = wrapping.watches()
        if not watches:
            return make(loader)
        opened = [watch for watch in watches if watch.begin()]
        begin_ns = time.monotonic_ns()
        try:
            iterator = _make_marked(make, loader, watches)
            end_ns = time.monotonic_ns()
            for watch in watches:
                watch.turned(begin_ns, end_ns)
        finally:
            for watch in opened:
                watch.clock.end_fetch()
        return iterator

    return watched_iter


def _make_marked(make: Callable[[Any], Any], loader: Any, watches: list[LoaderWatch]) -> Any:
    """The iterator of a loader, whose workers mark their batches if they start now."""
    serial, inner = next(_serials), loader.worker_init_fn
    for watch in watches:
        note_loader(watch.info, loader, serial)
    if not any(watch.ledger.marks for watch in watches):
        return make(loader)
    if loader.num_workers:
        loader.worker_init_fn = MarkingInit(inner, serial)
    try:
        iterator = make(loader)
    finally:
        if loader.num_workers:
            loader.worker_init_fn = inner
    _begin_pass(iterator, loader, serial, watches)
    return iterator


def _begin_pass(iterator: Any, loader: Any, serial: int, watches: list[LoaderWatch]) -> None:
    known = _passes.get(iterator)
    if known is not None:  # persistent workers, told to begin again
        known.passes += 1
        known.number = 0
        known.exact = _is_exact(loader)
        return
    exact = _is_exact(loader)
    marks = None if loader.num_workers else Marks(MAIN_WORKER, serial)
    uneven = bool(loader.num_workers) and isinstance(loader.dataset, IterableDataset)
    _passes[iterator] = _Pass(serial, loader.num_workers, exact, marks, until_one_ends=uneven)
    if exact:
        for watch in watches:
            watch.ledger.follow(serial)


def _is_exact(loader: Any) -> bool:
    """Whether its batches come in turn; torch 2.5 knows no other way."""
    return not loader.num_workers or getattr(loader, "in_order", True)


def _watched_next(fetch: Callable[[Any], Any], wrapping: _Wrapping) -> Callable[[Any], Any]:
    @wraps(fetch)
    def watched_next(iterator: Any) -> Any:
        watches = wrapping.watches()
        if not watches:
            return fetch(iterator)
        at = _passes.get(iterator)
        opened = [watch for watch in watches if watch.begin()]
        begin_ns = time.monotonic_ns()
        key = None
        try:
            batch = _fetch(fetch, iterator, at)
            key = at.take(iterator) if at else None
        except StopIteration:
            end_ns = time.monotonic_ns()
            for watch in watches:
                watch.turned(begin_ns, end_ns)
            raise
        except BaseException:
            if at:
                at.exact = False  # what comes next is anybody's guess
            _tell(watches, None, begin_ns)
            raise
        else:
            _tell(watches, key, begin_ns)
            return batch
        finally:
            for watch in opened:
                watch.clock.end_fetch()

    return watched_next


def _tell(watches: list[LoaderWatch], key: Key | None, begin_ns: int) -> None:
    end_ns = time.monotonic_ns()
    for watch in watches:
        watch.fetched(key, begin_ns, end_ns)


def _fetch(fetch: Callable[[Any], Any], iterator: Any, at: _Pass | None) -> Any:
    if at is None or at.marks is None:
        return fetch(iterator)
    at.marks.begin(at.passes, at.number)
    try:
        batch = fetch(iterator)
    except BaseException:
        at.marks.void()
        raise
    at.marks.end(batch)
    return batch
