"""The sessions of a service: which slots are taken, by whom, and how many anyone may have."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from trainobs.core.abi import SLOTS
from trainobs.core.now import now_s
from trainobs.probes.session_maps import SessionMaps
from trainobs.probes.shared import SharedProbes

logger = logging.getLogger("trainobs.service")

MAX_SESSIONS = SLOTS
"""Sessions at a time, some 8 MB of kernel memory each."""

MAX_PER_USER = 16
"""Sessions of one user at a time."""

REST_S = 60.0
"""How long a slot rests where there are others: a block request that the session before has begun
may end late, and counts by slot."""

REGAIN_S = 1.0
"""Time in which a user regains the right to begin one more session."""


class Refusal(Exception):
    """What a client asks for is not to be had; the message is for the client."""

    def __init__(self, found: str, do: str) -> None:
        super().__init__(found)
        self.found = found
        self.do = do


class Sessions:
    """Hands out slots of one set of probes. May be used by several threads.

    Args:
        probes: the set.
        limit: sessions at a time.
        per_user: sessions of one user at a time. Twice as many may be begun at once; from then on
            one each `REGAIN_S`, because maps that a process keeps after its session cost memory.
    """

    def __init__(
        self,
        probes: SharedProbes,
        *,
        limit: int = MAX_SESSIONS,
        per_user: int = MAX_PER_USER,
        now: Callable[[], float] = now_s,
    ) -> None:
        self.limit = limit
        self._probes = probes
        self._per_user = per_user
        self._now = now
        self._lock = threading.Lock()
        self._owners: dict[int, tuple[int, int]] = {}  # slot -> (uid, tgid)
        self._ended: dict[int, float] = {}  # slot -> when its last session was over
        # uid -> sessions that the user may begin at once, and since when (a bucket of tokens)
        self._budgets: dict[int, tuple[float, float]] = {}

    @property
    def count(self) -> int:
        """Sessions that there are."""
        return len(self._owners)

    def begin(self, uid: int, tgid: int) -> tuple[int, SessionMaps]:
        """Take a slot for a process.

        Returns:
            The slot, and the maps of its session, whose descriptors the caller closes.

        Raises:
            Refusal: a limit is reached, or the process has a session.
            OSError: the kernel has no memory or no descriptor for it.
        """
        with self._lock:
            slot = self._reserve(uid, tgid)
        try:
            return slot, self._probes.open(slot, guarded=True)
        except BaseException:
            self._free(slot)
            raise

    def end(self, slot: int) -> None:
        """End a session; its slot is free once the kernel has let go of all its tasks."""
        try:
            self._probes.close(slot)
        except OSError:
            logger.exception("slot %d cannot be cleaned, and will not be used again", slot)
            return
        self._free(slot)

    def _reserve(self, uid: int, tgid: int) -> int:
        if (uid, tgid) in self._owners.values():
            raise Refusal(
                "this process has a session already", "end it first, or let it have the one"
            )
        mine = sum(owner == uid for owner, _ in self._owners.values())
        if mine >= self._per_user:
            raise Refusal(
                f"the user has {mine} sessions already, as many as one may have",
                "end one, or start trainobs-probed with a larger --max-sessions-per-user",
            )
        if len(self._owners) >= self.limit:
            raise Refusal(
                f"all {self.limit} sessions are taken",
                "try again later, or start trainobs-probed with a larger --max-sessions",
            )
        self._spend(uid)
        slot = self._free_slot()
        self._owners[slot] = uid, tgid
        return slot

    def _free_slot(self) -> int:
        """The lowest one that has rested, or else the one that has rested longest."""
        free = set(range(SLOTS)) - self._owners.keys()
        since = self._now() - REST_S
        rested = [slot for slot in free if self._ended.get(slot, since) <= since]
        return min(rested) if rested else min(free, key=self._ended.__getitem__)

    def _spend(self, uid: int) -> None:
        now, most = self._now(), 2.0 * self._per_user
        tokens, since = self._budgets.get(uid, (most, now))
        tokens = min(most, tokens + (now - since) / REGAIN_S)
        self._budgets[uid] = tokens - (tokens >= 1), now
        if tokens < 1:
            raise Refusal("the user begins sessions faster than is allowed", "try again later")

    def _free(self, slot: int) -> None:
        with self._lock:
            del self._owners[slot]
            self._ended[slot] = self._now()
