"""Who is told of loaders: a step clock, and the ledger of batches."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from trainobs.core.abi import Phase
from trainobs.core.records import RunInfo
from trainobs.core.signals import let_signals_through
from trainobs.hooks.loader_pass import LoaderPass
from trainobs.hooks.loop_pass import LoopPass
from trainobs.steps.clock import StepClock
from trainobs.steps.ledger import Key, Ledger

_LOADER = Phase.LOADER.value


def _raise() -> None:
    raise  # what is being handled


class Told:
    """Passes on to a clock and a ledger what a loop gets from its loaders.

    Everything here may fail without harm if it is called by `safely`.

    Args:
        clock: of the thread that makes this; loaders in other threads are passed over.
        ledger: takes the fetches.
        info: of the run; what loaders there are is written into it.
        opens_steps: whether a fetch outside every phase is waiting, and opens a step: where nobody
            else tells the clock of it.
        on_fault: called after a fault of ours, while it is handled; the loop goes on unwatched.

    Attributes:
        observed: loaders whose fetches are the loop's, by their identity.
        delivering: whether what is fetched now goes to the step that fetches it. A loader that
            reads one batch ahead gets it for the next step.
        mixed: whether a fetch may also ask loaders that are not torch's, of which nothing is known.
        thread: the one whose loaders count.
    """

    def __init__(
        self,
        clock: StepClock,
        ledger: Ledger,
        info: RunInfo,
        *,
        opens_steps: bool = False,
        on_fault: Callable[[], None] = _raise,
    ) -> None:
        self.observed: dict[int, weakref.ref[Any]] = {}
        self.delivering = False
        self.mixed = opens_steps
        self.clock = clock
        self.ledger = ledger
        self.info = info
        self.thread = threading.get_ident()
        self._live = True
        self._on_fault = on_fault
        self._own = _OwnFetch(clock) if opens_steps else None

    def abandon(self) -> None:
        """Be told of nothing any more."""
        self._live = False

    def here(self) -> bool:
        """Whether to be told of what this thread does."""
        return self._live and threading.get_ident() == self.thread

    def safely(self, action: Callable[..., Any], *args: Any) -> Any:
        """Do something of ours; if it fails, None, and nobody is told any more."""
        if not self._live:
            return None
        try:
            return action(*args)
        except Exception:
            self.fault()
            return None

    def fault(self) -> None:
        """Something of ours has failed, and is being handled."""
        let_signals_through()
        if self._live:
            self.abandon()
            self._on_fault()

    def starts(self, loader: Any) -> LoopPass | _OwnFetch | None:
        """An iterator is about to be made; returns who is to be told that it is."""
        known = self.observed.get(id(loader))
        if known is None or known() is not loader:
            return self._opened()
        loop = LoopPass(self.clock, known)
        loop.start()
        return loop

    def asked(self, at: LoaderPass | None) -> LoopPass | _OwnFetch | None:
        """A batch is asked for; returns who is to be told that it is there."""
        loop = at.loops.get(id(self)) if at is not None else None
        if loop is None:
            return self._opened()
        loop.ask()
        return loop

    def made(self, told: LoopPass | _OwnFetch | None, begin_ns: int, end_ns: int) -> None:
        """An iterator was made."""
        self.turned(begin_ns, end_ns)
        if told is not None:
            told.made()

    def ended(self, told: LoopPass | _OwnFetch | None, begin_ns: int, end_ns: int) -> None:
        """An iterator has ended, and with it its workers."""
        self.turned(begin_ns, end_ns)
        if told is not None:
            told.over()

    def failed(self, told: LoopPass | _OwnFetch | None, *_: int) -> None:
        """An exception came instead of a batch, or of an iterator."""
        if self.clock.phase == _LOADER:
            self.clock.doubt()
        if told is not None:
            told.failed()

    def turned(self, begin_ns: int, end_ns: int) -> None:
        """Workers were started, or waited for as they ended."""
        if self.clock.phase == _LOADER:
            self.clock.explain()
            self.ledger.turned(self.clock.serial, end_ns - begin_ns)

    def fetched(
        self, told: LoopPass | _OwnFetch | None, key: Key | None, begin_ns: int, end_ns: int
    ) -> None:
        """A loader has answered with a batch; `key` is None if it is not known which one."""
        clock = self.clock
        waited = clock.phase == _LOADER
        if waited and (key is None or self.mixed):
            clock.doubt()
        elif waited:
            clock.explain()
        if key is not None:
            delivered = self.delivering or (told is not None and told.delivers)
            self.ledger.fetched([clock.serial, *key, begin_ns, end_ns, waited, delivered])
        if told is not None:
            told.got()

    def _opened(self) -> _OwnFetch | None:
        if self._own is None or self.clock.in_phase:
            return None
        self.clock.begin_fetch()
        return self._own


class _OwnFetch:
    """A fetch that opens a step, of which a framework tells when its batch is there."""

    delivers = False

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    def got(self) -> None:
        """The loader has answered, with whatever."""
        self._clock.end_fetch()

    made = over = failed = got
