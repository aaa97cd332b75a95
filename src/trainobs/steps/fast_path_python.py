"""The fast path of a step in Python: what nearly every step does, and nothing that is rare.

These classes, and `Marker`, are the reference of those in `native/`, which do the same in C, and
stand in for them where that is not built: see `fast_path`. What is rare is in the classes that
derive from them.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from threading import get_ident
from typing import Any, Protocol, TypeVar

from trainobs.core.abi import BATCH_BEGIN, BATCH_END, BATCH_VOID, MAIN_WORKER, Phase
from trainobs.steps.marker import Marker
from trainobs.steps.states import StepsBy

__all__ = [
    "CallbackContext",
    "FetchListener",
    "Marker",
    "PassTracker",
    "TaskMarks",
    "untracked",
    "watched_next",
]

T = TypeVar("T")

_LOADER = Phase.LOADER.value
_FETCHES = StepsBy.FETCHES.value

_packed = Struct("=9q").pack
_LARGE = 2**31
"""From here on a number does not go through ctypes as it is."""

_NO_WORKER = -1
"""No maker of batches: it is not known which one the fetch got, so none is found for it."""


class FetchListener:
    """Tells a clock of the fetches of one iterator: see `trainobs.hooks.loop_pass`.

    Attributes:
        clock: of the thread that fetches.
        fetched: takes each fetch that got a batch (`Ledger.fetched`).
        loop: whether the loop goes to it, so that its fetches open steps and batches.
        found: whether nobody has said what it is for: before each fetch `_look` says whether the
            loop goes to it.
        unmatched: whether its batches may be for a later step than the one that fetches them.
        opens: whether a fetch outside every phase opens a step, of which others tell more.
        opened: whether the last fetch did.
        aside: whether the pass began inside a phase, and is timed as waiting alone.
        leads: whether its fetches end steps, where fetches do; -1 before the first.
        epoch: of its batches; -1 if it counts none.
        begin_ns: when the last batch was asked for.
    """

    __slots__ = (
        "_name",
        "aside",
        "begin_ns",
        "clock",
        "epoch",
        "fetched",
        "found",
        "leads",
        "loop",
        "opened",
        "opens",
        "unmatched",
    )

    def __init__(self) -> None:
        self.clock: Any = None
        self.fetched: Callable[[bytearray], None] | None = None
        self._name: object = None
        self.loop = self.found = self.unmatched = False
        self.opens = self.opened = self.aside = False
        self.leads = self.epoch = -1
        self.begin_ns = 0

    def ask(self) -> None:
        """A batch is asked for."""
        clock = self.clock
        if self.found:
            self._look()
        if not self.loop:
            self.opened = self.opens and not clock.in_phase
            if self.opened:
                clock.begin_fetch()
        else:
            if self.leads < 0:
                self._ask_first()
            elif not self.aside and self.leads and clock.steps_by == _FETCHES:
                self.leads = clock.fetches.leader is self._name  # another one may have taken over
            if self.aside:
                clock.enter(_LOADER)
            else:
                clock.begin_fetch(bool(self.leads))
        self.begin_ns = time.monotonic_ns()

    def got(self) -> None:
        """The batch is there."""
        clock = self.clock
        if self.loop:
            clock.leave()
            if not self.aside:
                epoch = self.epoch if self.epoch >= 0 else None
                clock.begin_batch(None, epoch, self.leads > 0)
        elif self.opened:
            clock.leave()

    def _look(self) -> None:
        """Set `loop` for the fetch that begins."""
        raise NotImplementedError

    def _ask_first(self) -> None:
        """Say whether the pass leads, and of which epoch it is."""
        raise NotImplementedError

    def _answered(self, at: PassTracker, number: int, end_ns: int) -> None:
        """The loader has answered with a batch: which one, if that is known."""
        clock = self.clock
        waited = clock.phase == _LOADER
        if waited and (not at.exact or clock.other_loaders):
            clock.doubt()
        elif waited:
            clock.explain()
        if self.fetched is not None:
            key = (MAIN_WORKER, number)
            if not at.exact:
                key = (_NO_WORKER, number)
            elif at.workers:
                key = number % at.workers, number // at.workers
            delivered = (self.loop and not self.unmatched) or clock.delivering
            whose = clock.serial, at.loader, at.passes, *key
            self.fetched(bytearray(_packed(*whose, self.begin_ns, end_ns, waited, delivered)))
        self.got()


class PassTracker:
    """Where an iterator is, and who is told of it: see `trainobs.hooks.loader_pass`."""

    __slots__ = (
        "due",
        "exact",
        "listeners",
        "loader",
        "marks",
        "number",
        "passes",
        "until_one_ends",
        "watches",
        "workers",
    )

    def __init__(self) -> None:
        self.loader = self.workers = self.passes = self.number = self.due = 0
        self.exact = self.until_one_ends = False
        self.marks: Any = None
        self.watches: object = None
        self.listeners: tuple[FetchListener, ...] = ()

    def ask(self, watches: object, /) -> tuple[FetchListener, ...]:
        """A batch is asked for; returns who was told, for `got`."""
        if self.watches is not watches:
            self._tell(watches)
        listeners = self.listeners
        for listener in listeners:
            listener.ask()
        if self.marks is not None:
            self.marks.begin(self.passes, self.number)
        return listeners

    def got(self, listeners: tuple[FetchListener, ...], iterator: object, batch: object, /) -> None:
        """The iterator gave a batch."""
        if self.marks is not None:
            self.marks.end(batch)
        if self.until_one_ends:
            self._look_at(iterator)
        number = self.number
        self.number += 1
        end_ns = time.monotonic_ns()
        for listener in listeners:
            listener._answered(self, number, end_ns)
        if self.due and self.number >= self.due:
            self._note(iterator, batch)

    def _tell(self, watches: Any) -> None:
        """Have these told from now on."""
        raise NotImplementedError

    def _look_at(self, iterator: object) -> None:
        """See whether it is still known which batch comes next."""
        raise NotImplementedError

    def _note(self, iterator: object, batch: object) -> None:
        """Note something of the pass, and set `due`."""
        raise NotImplementedError


class RareFetches(Protocol):
    """What few fetches do; it raises nothing but what ends a training."""

    def unseen(self) -> PassTracker:
        """That of an iterator that nobody saw begin."""

    def without(
        self, at: Any, watches: Any, listeners: Sequence[Any], error: BaseException, /
    ) -> object:
        """A fetch got no batch."""

    def fault(self, watches: Any, /) -> object:
        """Something of ours has failed, which is being handled."""


def watched_next(
    fetch: Callable[[Any], Any],
    told: Mapping[int, object],
    passes: Mapping[int, PassTracker],
    rare: RareFetches,
    /,
) -> Callable[[Any], Any]:
    """`__next__` of iterators: of each fetch those are told who watch its thread.

    Args:
        fetch: the method that it stands for.
        told: thread -> who is told.
        passes: identity of an iterator -> its pass.
        rare: what few fetches do.
    """

    def watched(iterator: Any) -> Any:
        watches = told.get(get_ident())
        if not watches:
            return fetch(iterator)
        at = listeners = None
        try:
            at = passes.get(id(iterator)) or rare.unseen()
            listeners = at.ask(watches)
        except Exception:
            rare.fault(watches)
        if at is None or listeners is None:
            return fetch(iterator)  # which has none of ours as its context
        try:
            batch = fetch(iterator)
        except BaseException as error:
            rare.without(at, watches, listeners, error)
            raise
        try:
            at.got(listeners, iterator, batch)
        except Exception:
            rare.fault(watches)
        return batch

    return watched


class TaskMarks:
    """Marks the batches that one task makes: see `trainobs.hooks.marks`.

    Args:
        worker: number of the worker.
        loader: serial of the loader.
        bytes_of: how large a batch is; C asks only where it does not see that at once.
        kinds: types whose `nbytes` runs no Python; for C.
    """

    __slots__ = ("_bytes_of", "_loader", "_worker")

    def __init__(
        self,
        worker: int,
        loader: int,
        bytes_of: Callable[[object], int],
        kinds: tuple[type, ...],
        /,
    ) -> None:
        self._worker = _wide(worker)
        self._loader = loader
        self._bytes_of = bytes_of

    def begin(self, pass_number: int, number: int, /) -> None:
        """A batch begins: which pass over the loader, and which batch of this worker in it."""
        _prctl(BATCH_BEGIN, self._worker, number, self._loader, pass_number)

    def end(self, batch: object, /) -> None:
        """The batch is made."""
        _prctl(BATCH_END, _wide(self._bytes_of(batch)), 0, 0, 0)

    def void(self) -> None:
        """Nothing came of it: an exception, or the end of the data."""
        _prctl(BATCH_VOID, 0, 0, 0, 0)


class CallbackContext:
    """Context of a stretch of time, whose two ends somebody is told of, whatever becomes of that.

    Args:
        begin: called with `what` as it begins; None: nobody is told.
        what: for `begin`.
        end: called as it ends.
        on_fault: called after an exception of these two, while it is handled.
        value: what the context yields.
    """

    __slots__ = ("_begin", "_end", "_on_fault", "_value", "_what")

    def __init__(
        self,
        begin: Callable[[Any], object] | None,
        what: object,
        end: Callable[[], object] | None,
        on_fault: Callable[[], object],
        value: object = None,
        /,
    ) -> None:
        self._begin, self._what, self._end = begin, what, end
        self._on_fault, self._value = on_fault, value

    def __enter__(self) -> Any:
        try:
            if self._begin is not None:
                self._begin(self._what)
        except Exception:
            self._on_fault()
        return self._value

    def __exit__(self, *exception: object) -> None:
        try:
            if self._end is not None:
                self._end()
        except Exception:
            self._on_fault()


# Without types of its arguments, by which ctypes would make an object of each: half its time. So
# they are 32 bits wide, signed, but for those that are made `_wide`.
# PyDLL: a call this short need not let go of the interpreter's lock.
_prctl: Callable[..., int] = ctypes.PyDLL(None).prctl


def untracked(thing: T, /) -> T:
    """Hide it from Python's garbage collector, which C alone can do: see `native/clock.c`."""
    return thing


def _wide(number: int) -> Any:
    """An argument of `_prctl` that may be large."""
    return number if number < _LARGE else ctypes.c_ulong(number)
