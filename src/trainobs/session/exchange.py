"""Small values that ranks show each other through the job's own key-value store.

A store may answer slowly or never: its server is a thread of another rank, which may be stopped, or
gone. So it is asked by a thread of its own, in jobs of several ranks only, for which nobody waits.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from trainobs.core.log import logger
from trainobs.core.now import now_s

ROUND_S = 1.0
"""Time between two rounds; with many ranks as many times longer as there are hundreds of them."""

PATIENCE_S = 1.0
"""How long the end of a run waits for the last rounds."""

_LAST_ROUND_S = 0.05

_serials = itertools.count()
"""Sessions of this process. The ranks of a job run the same program, and so count the same."""


class Store(Protocol):
    """A key-value store of the job; every method may raise anything."""

    def put(self, key: str, value: bytes) -> None:
        """Set a key, or overwrite it."""

    def get(self, key: str) -> bytes | None:
        """The value of a key, at once; None if it is not there."""

    def delete(self, key: str) -> None:
        """Remove a key."""


class Exchange:
    """Shows one value of this rank, and on rank 0 sees those of the others.

    One key for each rank and session, overwritten, and removed by the session that follows: rank 0
    may read for a moment longer than others run.

    Args:
        open_store: the store for a prefix; None while the job has none.
    """

    def __init__(
        self, open_store: Callable[[str], Store | None], rank: int, world_size: int
    ) -> None:
        self._open_store = open_store
        self._rank = rank
        self._world_size = world_size
        self._serial = next(_serials)
        self._own: bytes | None = None
        self._seen: dict[int, bytes] = {}
        self._is_complete: Callable[[], bool] = lambda: True
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainobs ranks", daemon=True)

    def start(self) -> None:
        """Begin; for the observer's thread, which is not counted, so that this one is not either.

        Where a thread cannot be started, nothing is exchanged.
        """
        with suppress(RuntimeError):
            self._thread.start()

    def show(self, value: bytes) -> None:
        """Have the others see this value from now on."""
        self._own = value

    def seen(self) -> dict[int, bytes]:
        """On rank 0, what the others showed last, by rank."""
        return dict(self._seen)

    def stop(self, is_complete: Callable[[], bool] = lambda: True) -> None:
        """One last round, unless the store hangs. May be called twice.

        Args:
            is_complete: whether rank 0 has seen all that it hopes for. The others end at about the
                same time, so while it says no there are more rounds, for half of the patience.
        """
        self._is_complete = is_complete
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        round_s = ROUND_S * max(1.0, self._world_size / 100)
        store, last = None, False
        try:
            while not last:
                last = self._stopping.wait(round_s)
                if store is None:
                    store = self._opened()
                if store is not None:
                    self._round(store)
            deadline = now_s() + PATIENCE_S / 2
            while store is not None and self._rank == 0 and now_s() < deadline:
                if self._is_complete():
                    break
                time.sleep(_LAST_ROUND_S)
                self._round(store)
        except Exception as error:  # a rank is gone, or the job has taken its store away
            logger.debug("ranks are no longer compared while they run: %s", error)

    def _opened(self) -> Store | None:
        store = self._open_store("trainobs")
        if store is not None and self._serial:
            store.delete(_key(self._serial - 1, self._rank))
        return store

    def _round(self, store: Store) -> None:
        own = self._own
        if own is not None:
            store.put(_key(self._serial, self._rank), own)
        if self._rank == 0:
            for rank in range(1, self._world_size):
                value = store.get(_key(self._serial, rank))
                if value is not None:
                    self._seen[rank] = value


def _key(serial: int, rank: int) -> str:
    return f"{serial}/{rank}"
