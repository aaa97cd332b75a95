"""Three methods of torch and one of Python, wrapped while somebody watches.

They are `DataLoader.__iter__`, the `_get_iterator` that it calls, `__next__` of its iterators, and
`start` of processes. Loaders are never changed for longer than it takes to make their iterator: for
that moment they have a `worker_init_fn` that has the workers mark their batches (see `marks`).

A fault of ours ends what is watched, and nothing else: what is done around torch's own methods is
done `safely`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import chain
from multiprocessing.process import BaseProcess
from threading import get_ident, local
from types import FrameType
from typing import Any, NamedTuple

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trainobs.hooks.loader_facts import note_loader
from trainobs.hooks.loader_listener import LoaderListener
from trainobs.hooks.loader_pass import LoaderPass, passes, serials
from trainobs.hooks.loop_pass import Fetch, LoopPass
from trainobs.hooks.marks import MarkingInit
from trainobs.hooks.observed_loader import followed
from trainobs.steps.fast_path import FetchListener, watched_next

_INIT = "worker_init_fn"


class _Wrapping:
    """What is wrapped of torch; once undone, a wrapper that somebody holds on to does nothing.

    Attributes:
        told: thread -> who is to be told of what it does; none of them is empty.
    """

    def __init__(self) -> None:
        self.told: dict[int, tuple[LoaderListener, ...]] = {}
        self._undo: dict[tuple[type, str], tuple[Callable[..., Any], Callable[..., Any]]] = {}
        self._wrap(_BaseDataLoaderIter, "__next__", self._watched_next)
        self._wrap(BaseProcess, "start", _timed_start)

    def wrap_loaders(self) -> None:
        """Wrap the loaders that make iterators of torch in a method of their own."""
        self._wrap(DataLoader, "__iter__", self._watched_iter)
        self._wrap(DataLoader, "_get_iterator", self._watched_get)  # Ultralytics calls it itself
        stateful = sys.modules.get("torchdata.stateful_dataloader")
        if stateful:  # imported by now
            self._wrap(stateful.StatefulDataLoader, "__iter__", self._watched_iter)

    def is_outermost(self, kind: type) -> bool:
        """Whether the first that hears of an iterator of such a loader is ours."""
        method = getattr(kind, "__iter__", None)
        return any(method is wrapper for _, wrapper in self._undo.values())

    def undo(self) -> None:
        """Put back what was there; what somebody has wrapped since stays."""
        self.told.clear()
        for (cls, name), (original, wrapper) in self._undo.items():
            if getattr(cls, name) is wrapper:
                setattr(cls, name, original)

    def _watched_iter(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def watched_iter(loader: Any) -> Any:
            watches = self.told.get(get_ident(), ())
            if not watches:
                self._note_elsewhere(loader)
            begun = _safely(watches, _begin, loader, watches) if watches else None
            if begun is None:
                return make(loader)
            told = begun.told
            begin_ns, _starts.took_ns = time.monotonic_ns(), 0
            try:
                with _marking(loader, begun.serial if begun.marked else None):
                    iterator = make(loader)
            except BaseException:
                _safely(watches, _not_made, told)
                raise
            took_ns, workers_ns = time.monotonic_ns() - begin_ns, _starts.took_ns
            _safely(watches, _begin_pass, iterator, loader, begun, watches)
            observed = _safely(watches, _made, iterator, told, took_ns, workers_ns)
            return iterator if observed is None else observed

        return watched_iter

    def _watched_get(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        watched = self._watched_iter(make)

        def watched_get(loader: Any) -> Any:
            return make(loader) if _is_in_iter(loader) else watched(loader)

        return watched_get

    def _note_elsewhere(self, loader: Any) -> None:
        """A thread of which nobody is told goes through a loader."""
        for watch in chain.from_iterable(list(self.told.values())):
            watch.elsewhere |= id(loader) in watch.observed

    def _watched_next(self, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return watched_next(fetch, self.told, passes, _Rare)

    def _wrap(self, cls: type, name: str, wrap: Callable[..., Any]) -> None:
        if (cls, name) not in self._undo:
            original = getattr(cls, name)
            wrapper = wraps(original)(wrap(original))
            setattr(cls, name, wrapper)
            self._undo[cls, name] = original, wrapper


_wrapped: list[_Wrapping] = []


def tell(watch: LoaderListener) -> None:
    """Tell a watch, from now on."""
    if not _wrapped:
        _wrapped.append(_Wrapping())
    wrapping = _wrapped[0]
    wrapping.told[watch.thread] = (*wrapping.told.get(watch.thread, ()), watch)
    wrapping.wrap_loaders()


def tell_no_more(watch: LoaderListener) -> None:
    """Tell a watch nothing any more. May be done twice."""
    for wrapping in _wrapped:
        told = wrapping.told.pop(watch.thread, ())
        if others := tuple(other for other in told if other is not watch):
            wrapping.told[watch.thread] = others
    for at in list(passes.values()):
        at.forget()


def is_watched() -> bool:
    """Whether anybody is told of what a thread of this process does."""
    return any(wrapping.told for wrapping in _wrapped)


def unwrap_if_unwatched() -> None:
    """Leave torch as it was, if there is no watch any more."""
    while _wrapped and not is_watched():
        _wrapped.pop().undo()
        passes.clear()  # passes that begin from now on go uncounted


def is_told_of(loader: object) -> bool:
    """Whether all that a loop gets from a loader comes by what is wrapped of torch."""
    for wrapping in _wrapped:
        wrapping.wrap_loaders()
    return any(wrapping.is_outermost(type(loader)) for wrapping in _wrapped)


def _is_in_iter(loader: Any) -> bool:
    """Whether torch's `__iter__` of a loader goes on, which is told of.

    By the frames: of anything kept, an exception of a signal's handler might leave it set.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        is_torchs = frame.f_globals.get("__name__") == DataLoader.__module__
        if (
            is_torchs
            and frame.f_code.co_name == "__iter__"
            and frame.f_locals.get("self") is loader
        ):
            return True
        frame = frame.f_back
    return False


class _Starts(local):
    took_ns = 0


_starts = _Starts()
"""What this thread took to start processes since it last began to make an iterator."""


def _timed_start(start: Callable[[Any], None]) -> Callable[[Any], None]:
    def timed_start(process: Any) -> None:
        begin_ns = time.monotonic_ns()
        try:
            start(process)
        finally:
            _starts.took_ns += time.monotonic_ns() - begin_ns

    return timed_start


class _Begun(NamedTuple):
    """An iterator that is about to be made.

    Attributes:
        told: who is told of it, and how.
        serial: of its loader.
        marked: whether its batches are.
        facts: what is written down of the loader, in each run.
    """

    told: list[tuple[LoaderListener, LoopPass | Fetch]]
    serial: int
    marked: bool
    facts: list[dict[str, Any]]


def _begin(loader: Any, watches: Sequence[LoaderListener]) -> _Begun:
    serial = next(serials)
    facts = [note_loader(watch.info, loader, serial, watch.known_loaders) for watch in watches]
    told = [(watch, watch.starts(loader)) for watch in watches]
    return _Begun(told, serial, any(watch.ledger.marks for watch in watches), facts)


def _made(iterator: Any, told: list[Any], took_ns: int, workers_ns: int) -> Any:
    for watch, its in told:
        watch.made(its, took_ns, workers_ns)
        if isinstance(its, LoopPass):
            iterator = followed(iterator, watch, its)
    return iterator


def _not_made(told: list[Any]) -> None:
    for watch, its in told:
        watch.failed(its)


@contextmanager
def _marking(loader: Any, serial: int | None) -> Iterator[None]:
    """For as long as it takes to make an iterator: workers that start mark their batches.

    Past what the loader does where it is set: that one may refuse.
    """
    fields = getattr(loader, "__dict__", {})
    if serial is None or not fields.get("num_workers") or _INIT not in fields:
        yield
        return
    inner = fields[_INIT]
    fields[_INIT] = MarkingInit(inner, serial)
    try:
        yield
    finally:
        fields[_INIT] = inner


def _begin_pass(
    iterator: Any, loader: Any, begun: _Begun, watches: Sequence[LoaderListener]
) -> None:
    if not isinstance(iterator, _BaseDataLoaderIter):
        return
    at = passes.get(id(iterator))
    if at is not None:
        at.again(loader, marked=begun.marked)
    else:
        at = LoaderPass.first(iterator, loader, begun.serial, marked=begun.marked)
        at.keep_for(iterator)
        if at.exact:
            for watch in watches:
                watch.ledger.follow(begun.serial)
    at.begin_noting(iterator, begun.facts)
    for watch in watches:
        if watch.expected is not None:
            watch.expected.makes(loader, at)


class _Rare:
    """What few fetches do: see `watched_next`."""

    @staticmethod
    def unseen() -> LoaderPass:
        """Of an iterator that nobody saw begin."""
        return LoaderPass(0, 0)

    @staticmethod
    def without(
        at: LoaderPass,
        watches: Sequence[LoaderListener],
        told: Sequence[FetchListener],
        error: BaseException,
    ) -> None:
        """A fetch got no batch."""
        _safely(watches, _without, error, at, zip(watches, told, strict=True))

    @staticmethod
    def fault(watches: Sequence[LoaderListener]) -> None:
        """Something of ours has failed, which is being handled: nobody is told any more."""
        for watch in watches:
            watch.fault()


def _without(
    error: BaseException, at: LoaderPass, told: Iterable[tuple[LoaderListener, Any]]
) -> None:
    over = isinstance(error, StopIteration)
    at.void(over=over)
    end_ns = time.monotonic_ns()
    # Those of a stream may have been asked for more data, which none of them has.
    waits_for_workers = bool(at.workers) and not at.until_one_ends
    for watch, its in told:
        if over:
            watch.ended(its, end_ns - its.begin_ns, waits_for_workers=waits_for_workers)
        else:
            watch.failed(its)


def _safely(watches: Sequence[LoaderListener], action: Callable[..., Any], *args: Any) -> Any:
    """Do something of ours; if it fails, None, and nobody is told any more."""
    try:
        return action(*args)
    except Exception:
        _Rare.fault(watches)
        return None
