"""What each user may have, so that none can take it from the others."""

from __future__ import annotations

import threading
from collections.abc import Callable

from trainobs.core.now import now_s

_RESERVED = 8  # one of so many is for users who have none
_FORGET = 1024  # users, before those are forgotten who have spent nothing


class Refusal(Exception):
    """What a client asks for is not to be had; the message is for the client.

    Args:
        found: why.
        do: what to do about it.
        again: it may be had in a moment, and the client had better ask again.
    """

    def __init__(self, found: str, do: str, *, again: bool = False) -> None:
        super().__init__(found)
        self.found = found
        self.do = do
        self.again = again

    def message(self) -> dict[str, object]:
        """As it is told to the client."""
        return {"ok": False, "found": self.found, "do": self.do, "again": self.again}


def why_no_more(what: str, mine: int, taken: int, *, each: int, total: int) -> str | None:
    """Why a user may not have one more of something; None: it may.

    Args:
        what: the word for several of it.
        mine: what the user has.
        taken: what all users have.
        each: what one may have.
        total: what all may have; the last eighth of it is for users who have none.
    """
    reserved = total // _RESERVED
    if mine >= each:
        return f"the user has {mine} {what} already, as many as one may have"
    if taken >= total:
        return f"all {total} {what} are taken"
    if mine and taken >= total - reserved:
        return f"the last {reserved} of {total} {what} are for users who have none"
    return None


class Allowance:
    """How often each user may do something. May be used by several threads.

    Args:
        at_once: times at once.
        regain_s: seconds in which a user regains one of them.
    """

    def __init__(self, at_once: float, regain_s: float, now: Callable[[], float] = now_s) -> None:
        self._most = at_once
        self._regain_s = regain_s
        self._now = now
        self._lock = threading.Lock()
        self._left: dict[int, tuple[float, float]] = {}  # uid -> how many times, and since when

    def spend(self, uid: int) -> bool:
        """Do it once; False: it may not be done now."""
        with self._lock:
            left = self._left_of(uid)
            self._left[uid] = left - (left >= 1), self._now()
            if len(self._left) > _FORGET:
                kept = {uid: self._left_of(uid) for uid in self._left}
                self._left = {u: (n, self._now()) for u, n in kept.items() if n < self._most}
            return left >= 1

    def _left_of(self, uid: int) -> float:
        left, since = self._left.get(uid, (self._most, self._now()))
        return min(self._most, left + (self._now() - since) / self._regain_s)
