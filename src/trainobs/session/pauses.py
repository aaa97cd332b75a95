"""Pauses of Python's garbage collector, which stop every thread of the process."""

from __future__ import annotations

import gc
import time

from trainobs.steps.timeline import Spans


class CollectorPauses:
    """Times every collection from construction to `close` (gc.callbacks).

    Attributes:
        spans: `python/gc_ns` and `python/gc_count`, for the collector of steps.
    """

    def __init__(self) -> None:
        self.spans = Spans("python/gc_ns", "python/gc_count")
        self._begin_ns = 0
        gc.callbacks.append(self._told)

    def close(self) -> None:
        """Time no more. May be called twice."""
        if self._told in gc.callbacks:
            gc.callbacks.remove(self._told)

    def _told(self, phase: str, info: dict[str, int]) -> None:
        now = time.monotonic_ns()
        if phase == "start":
            self._begin_ns = now
        elif self._begin_ns:
            self.spans.add(now, now - self._begin_ns)
