"""Log lines that users cause: of each no more than a share, and how many were left out."""

from __future__ import annotations

import logging
import threading
from collections import Counter

from trainobs.service.shares import Allowance

AT_ONCE, REGAIN_S = 64, 1.0
"""Lines that a user may cause at once, and seconds until one more."""

_logger = logging.getLogger("trainobs.service")


class UserLog:
    """Logs what users do. May be used by several threads."""

    def __init__(self) -> None:
        self._allowance = Allowance(AT_ONCE, REGAIN_S)
        self._lock = threading.Lock()
        self._left_out: Counter[int] = Counter()

    def say(self, uid: int, level: int, text: str, *values: object, failure: bool = False) -> None:
        """Log a line, if the user has not caused too many.

        Args:
            uid: the user.
            level: of `logging`.
            text: with a place for each of the values.
            values: of the places.
            failure: add the traceback of the exception that is being handled.
        """
        if self._allowance.spend(uid):
            _logger.log(level, text, *values, exc_info=failure)
            return
        with self._lock:
            self._left_out[uid] += 1

    def tell_left_out(self) -> bool:
        """Log how many lines were left out, of each user who may cause a line again.

        Returns:
            Whether there are others.
        """
        with self._lock:
            told = {uid: n for uid, n in self._left_out.items() if self._allowance.spend(uid)}
            for uid in told:
                del self._left_out[uid]
            others = bool(self._left_out)
        for uid, number in told.items():
            _logger.warning("left out %d lines about processes of user %d", number, uid)
        return others
