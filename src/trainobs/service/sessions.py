"""The sessions of a service: which slots are taken, by whom, and how many anyone may have."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from trainobs.core.abi import SLOTS
from trainobs.core.now import now_s
from trainobs.probes.session_maps import SessionMaps
from trainobs.probes.shared import SharedProbes
from trainobs.service.kept_maps import KeptMaps
from trainobs.service.shares import Allowance, Refusal, why_no_more

logger = logging.getLogger("trainobs.service")

MAX_SESSIONS = SLOTS
"""Sessions at a time, 12 to 18 MB of kernel memory each."""

MAX_PER_USER = 16
"""Sessions of one user at a time, and as many that are over and whose maps the user keeps."""

REST_S = 60.0
"""How long a slot rests where there are others: a block request that the session before has begun
may end late, and counts by slot."""

REGAIN_S = 1.0
"""Time in which a user regains the right to begin one more session."""


class _Session(NamedTuple):
    uid: int
    tgid: int
    sums_fd: int  # -1: its maps are being made


class Sessions:
    """Hands out slots of one set of probes. May be used by several threads.

    Args:
        probes: the set.
        limit: sessions at a time.
        per_user: sessions of one user at a time. Twice as many may be begun at once; from then on
            one each `REGAIN_S`.
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
        self._sessions: dict[int, _Session] = {}  # by slot
        self._ended: dict[int, float] = {}  # slot -> when its last session was over
        self._kept = KeptMaps()
        self._begins = Allowance(2 * per_user, REGAIN_S, now)

    @property
    def count(self) -> int:
        """Sessions that there are."""
        return len(self._sessions)

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
            maps = self._probes.open(slot, guarded=True)
        except BaseException:
            self._free(slot)
            raise
        try:
            self._sessions[slot] = _Session(uid, tgid, os.dup(maps.sums_fd))
        except OSError:
            maps.close()
            self.end(slot)
            raise
        return slot, maps

    def end(self, slot: int) -> None:
        """End a session; its slot is free once the kernel has let go of all its tasks."""
        try:
            self._probes.close(slot)
        except OSError:
            logger.exception("slot %d cannot be cleaned, and will not be used again", slot)
            return
        self._free(slot)

    def _reserve(self, uid: int, tgid: int) -> int:
        if (uid, tgid) in [(other.uid, other.tgid) for other in self._sessions.values()]:
            raise Refusal(
                "this process has a session already", "end it first, or let it have the one"
            )
        mine = sum(other.uid == uid for other in self._sessions.values())
        limits = {"each": self._per_user, "total": self.limit}
        if found := why_no_more("sessions", mine, self.count, **limits):
            option = "--max-sessions-per-user" if mine >= self._per_user else "--max-sessions"
            raise Refusal(found, f"end one, or start trainobs-probed with a larger {option}")
        self._see_what_is_kept(uid)
        if not self._begins.spend(uid):
            raise Refusal("the user begins sessions faster than is allowed", "try again later")
        slot = self._free_slot()
        self._sessions[slot] = _Session(uid, tgid, -1)
        return slot

    def _see_what_is_kept(self, uid: int) -> None:
        """Sessions that are over cost memory for as long as anyone has their maps."""
        kept = self._kept.counts()
        mine, all_kept = kept.get(uid, 0), sum(kept.values())
        if mine >= self._per_user or (mine and all_kept >= self.limit):
            raise Refusal(
                f"the user keeps the memory of {mine} sessions that are over, and all users that "
                f"of {all_kept}; {self._per_user} and {self.limit} are allowed",
                "end the processes of this user that had these sessions, and their children",
            )

    def _free_slot(self) -> int:
        """The lowest one that has rested, or else the one that has rested longest."""
        free = set(range(SLOTS)) - self._sessions.keys()
        since = self._now() - REST_S
        rested = [slot for slot in free if self._ended.get(slot, since) <= since]
        return min(rested) if rested else min(free, key=self._ended.__getitem__)

    def _free(self, slot: int) -> None:
        with self._lock:
            session = self._sessions.pop(slot)
            self._ended[slot] = self._now()
            if session.sums_fd >= 0:
                self._kept.add(session.uid, session.sums_fd)
