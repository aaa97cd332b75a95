"""Something done where no signal's handler can raise: in another thread than the main one."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

PATIENCE_S = 5.0
"""How long a thread may take to begin. One that has no memory to begin says so to nobody, and
`threading.Thread.start` would wait for it for ever."""


def in_another_thread(action: Callable[[], None]) -> None:
    """Do something there, and wait for its end; where no thread begins, here.

    Args:
        action: may be done twice, also at the same time.
    """
    begun, ended = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        try:
            action()
        finally:
            ended.set()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # no more threads: at interpreter exit, or at a limit
        action()
        return
    if begun.wait(PATIENCE_S):
        ended.wait()
    else:
        action()
