"""Two methods of torch and one of Python, wrapped while somebody watches.

They are `DataLoader.__iter__`, `__next__` of its iterators, and `start` of processes. Loaders are
never changed for longer than it takes to make their iterator: for that moment they have a
`worker_init_fn` that has the workers mark their batches (see `marks`).

A fault of ours ends what is watched, and nothing else: what is done around torch's own methods is
done `safely`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from multiprocessing.process import BaseProcess
from threading import get_ident, local
from typing import Any, NamedTuple

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trainobs.hooks.loader_facts import note_loader
from trainobs.hooks.loader_listener import LoaderListener
from trainobs.hooks.loader_pass import LoaderPass, passes, serials
from trainobs.hooks.loop_pass import Fetch, LoopPass
from trainobs.hooks.marks import MarkingInit
from trainobs.hooks.observed_loader import followed

_INIT = "worker_init_fn"


class _Wrapping:
    """What is wrapped of torch; once undone, a wrapper that somebody holds on to does nothing."""

    def __init__(self) -> None:
        self.live = True
        self._undo: dict[tuple[type, str], tuple[Callable[..., Any], Callable[..., Any]]] = {}
        self._wrap(_BaseDataLoaderIter, "__next__", _watched_next)
        self._wrap(BaseProcess, "start", _timed_start)

    def wrap_loaders(self) -> None:
        """Wrap the loaders that make iterators of torch in a method of their own."""
        self._wrap(DataLoader, "__iter__", _watched_iter)
        stateful = sys.modules.get("torchdata.stateful_dataloader")
        if stateful:  # imported by now
            self._wrap(stateful.StatefulDataLoader, "__iter__", _watched_iter)

    def is_outermost(self, kind: type) -> bool:
        """Whether the first that hears of an iterator of such a loader is ours."""
        method = getattr(kind, "__iter__", None)
        return any(method is wrapper for _, wrapper in self._undo.values())

    def undo(self) -> None:
        """Put back what was there; what somebody has wrapped since stays."""
        self.live = False
        for (cls, name), (original, wrapper) in self._undo.items():
            if getattr(cls, name) is wrapper:
                setattr(cls, name, original)

    def watches(self) -> tuple[LoaderListener, ...]:
        """Those that are to be told of what this thread does."""
        return _watches.get(get_ident(), ()) if self.live else ()

    def _wrap(self, cls: type, name: str, wrap: Callable[..., Callable[..., Any]]) -> None:
        if (cls, name) not in self._undo:
            original = getattr(cls, name)
            wrapper = wrap(original, self)
            setattr(cls, name, wrapper)
            self._undo[cls, name] = original, wrapper


_watches: dict[int, tuple[LoaderListener, ...]] = {}
"""Thread -> who is to be told of what it does; none of them is empty."""

_wrapped: list[_Wrapping] = []


def tell(watch: LoaderListener) -> None:
    """Tell a watch, from now on."""
    _watches[watch.thread] = (*_watches.get(watch.thread, ()), watch)
    if not _wrapped:
        _wrapped.append(_Wrapping())
    _wrapped[0].wrap_loaders()


def tell_no_more(watch: LoaderListener) -> None:
    """Tell a watch nothing any more. May be done twice."""
    others = tuple(other for other in _watches.pop(watch.thread, ()) if other is not watch)
    if others:
        _watches[watch.thread] = others
    for at in list(passes.values()):
        at.forget()


def is_watched() -> bool:
    """Whether anybody is told of what a thread of this process does."""
    return bool(_watches)


def unwrap_if_unwatched() -> None:
    """Leave torch as it was, if there is no watch any more."""
    while _wrapped and not _watches:
        _wrapped.pop().undo()
        passes.clear()  # passes that begin from now on go uncounted


def is_told_of(loader: object) -> bool:
    """Whether all that a loop gets from a loader comes by what is wrapped of torch."""
    for wrapping in _wrapped:
        wrapping.wrap_loaders()
    return any(wrapping.is_outermost(type(loader)) for wrapping in _wrapped)


def _watched_iter(make: Callable[[Any], Any], wrapping: _Wrapping) -> Callable[[Any], Any]:
    @wraps(make)
    def watched_iter(loader: Any) -> Any:
        watches = wrapping.watches()
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


class _Starts(local):
    took_ns = 0


_starts = _Starts()
"""What this thread took to start processes since it last began to make an iterator."""


def _timed_start(start: Callable[[Any], None], wrapping: _Wrapping) -> Callable[[Any], None]:
    @wraps(start)
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
    facts = [
        note_loader(watch.info, loader, serial, is_new=watch.known_loaders.is_new(loader))
        for watch in watches
    ]
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
        if watch.expected is not None and watch.expected.base is loader:
            watch.expected.begin(at)


def _watched_next(fetch: Callable[[Any], Any], wrapping: _Wrapping) -> Callable[[Any], Any]:
    @wraps(fetch)
    def watched_next(iterator: Any) -> Any:
        watches = _watches.get(get_ident()) if wrapping.live else None
        if not watches:
            return fetch(iterator)
        try:
            at = passes.get(id(iterator)) or LoaderPass(0, 0)  # that nobody saw begin
            told = at.ask(watches)
        except Exception:
            _fault(watches)
            return fetch(iterator)
        try:
            batch = fetch(iterator)
        except BaseException as error:
            _safely(watches, _without, error, at, zip(watches, told, strict=True))
            raise
        try:
            at.got(told, iterator, batch)
            if at.number >= at.due:
                at.note(iterator, batch)
        except Exception:
            _fault(watches)
        return batch

    return watched_next


def _without(
    error: BaseException, at: LoaderPass, told: Iterable[tuple[LoaderListener, Any]]
) -> None:
    """A fetch got no batch."""
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
        _fault(watches)
        return None


def _fault(watches: Sequence[LoaderListener]) -> None:
    for watch in watches:
        watch.fault()
