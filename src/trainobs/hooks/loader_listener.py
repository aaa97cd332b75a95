"""The listener of loaders: it tells a step clock, and the ledger of batches."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from trainobs.core.abi import Phase
from trainobs.core.records import RunInfo
from trainobs.core.signals import let_signals_through
from trainobs.hooks.loader_facts import KnownLoaders
from trainobs.hooks.loop_pass import Fetch, LoopPass, reads_ahead
from trainobs.steps.clock import StepClock

_LOADER = Phase.LOADER.value


def _raise() -> None:
    raise  # what is being handled


class FetchLedger(Protocol):
    """What `Ledger` is asked and told here, and says more of.

    Attributes:
        watched: whether somebody tells of fetches.
    """

    watched: bool

    @property
    def marks(self) -> bool:
        """Whether it is of use that batches are marked."""

    @property
    def fetched(self) -> Callable[[bytearray], None]:
        """Takes a fetch that is over."""

    @property
    def given(self) -> Callable[[list[int]], None]:
        """Takes the step that got a batch, and its `Key`, of a loader that `gives_later`."""

    def follow(self, loader: int) -> None:
        """The fetches from a loader will tell which batch they got."""

    def gives_later(self, loader: int) -> None:
        """What is fetched from a loader is kept until it is `given` to a step."""

    def turned(self, serial: int, duration_ns: int, workers_ns: int) -> None:
        """A loader started or ended."""


class LoaderListener:
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
        elsewhere: whether another thread has gone through one of `observed`.
        expected: the `Matcher` that is to be told of iterators of torch's that are made.
        given_tensors: the `GivenTensors` of this, once there is one.
        known_loaders: those of which an iterator was made.
        observed: loaders whose fetches are the loop's, by their identity.
        opens_steps: as above.
        thread: the one whose loaders count.
    """

    def __init__(
        self,
        clock: StepClock,
        ledger: FetchLedger,
        info: RunInfo,
        *,
        opens_steps: bool = False,
        on_fault: Callable[[], None] = _raise,
    ) -> None:
        self.observed: dict[int, weakref.ref[Any]] = {}
        self.elsewhere = False
        self.expected: Any = None
        self.given_tensors: Any = None
        self.known_loaders = KnownLoaders()
        self.clock = clock
        self.opens_steps = opens_steps
        clock.other_loaders = opens_steps  # until it is known what such a loop asks
        self.ledger = ledger
        self.info = info
        self.thread = threading.get_ident()
        self._live = True
        self._on_fault = on_fault

    def abandon(self) -> None:
        """Be told of nothing any more."""
        self._live = False

    def here(self) -> bool:
        """Whether to be told of what this thread does."""
        return self._live and threading.get_ident() == self.thread

    def note_elsewhere(self) -> None:
        """One of `observed` is gone through: note it if that is by another thread."""
        self.elsewhere |= threading.get_ident() != self.thread

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

    def starts(self, loader: Any) -> LoopPass | Fetch:
        """An iterator is about to be made; returns who is to be told that it is."""
        known = self.observed.get(id(loader))
        if known is None or known() is not loader:
            fetch = Fetch(self.clock, opens=self.opens_steps)
            fetch.ask()
            return fetch
        loop = LoopPass(self.clock, known)
        loop.start(reads=reads_ahead(loader))
        return loop

    def made(self, its: LoopPass | Fetch, took_ns: int, workers_ns: int) -> None:
        """An iterator was made, and its workers were started meanwhile."""
        self.turned(took_ns, workers_ns)
        its.made()

    def ended(self, its: LoopPass | Fetch, took_ns: int, *, waits_for_workers: bool) -> None:
        """An iterator has ended, and with it its workers, which may be all that took time."""
        self.turned(took_ns, took_ns if waits_for_workers else 0)
        its.over()

    def failed(self, its: LoopPass | Fetch) -> None:
        """An exception came instead of a batch, or of an iterator."""
        if self.clock.phase == _LOADER:
            self.clock.doubt()
        its.failed()

    def gives_later(self, loader: int, workers: int) -> None:
        """What is fetched from a loader, which has so many workers, is told as a step gets it."""
        self.ledger.gives_later(loader)
        if self.info.settings.get("loader_workers") is None:  # what is around it does not tell
            self.info.settings["loader_workers"] = workers

    def turned(self, took_ns: int, workers_ns: int) -> None:
        """A loader started or ended, and some of that is surely its workers'."""
        if self.clock.phase == _LOADER:
            self.clock.explain()
            self.ledger.turned(self.clock.serial, took_ns, workers_ns)
