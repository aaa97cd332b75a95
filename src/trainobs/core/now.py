"""The clocks of trainobs's own waiting."""

from __future__ import annotations

import time


def now_s() -> float:
    """Seconds of the monotonic clock.

    Not by `time.monotonic`: tests of training scripts replace that by a list of readings, in which
    each is meant for a caller that they know.
    """
    return time.monotonic_ns() * 1e-9


def wall_s() -> float:
    """Seconds since 1970; not by `time.time`, for the same reason."""
    return time.time_ns() * 1e-9
