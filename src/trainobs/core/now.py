"""The clocks of trainobs's own waiting, and all of them at one instant."""

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


def clocks() -> dict[str, int]:
    """CLOCK_MONOTONIC, CLOCK_BOOTTIME and time since 1970 at the same instant, in ns.

    What other tools stamp with one of the last two can so be laid beside a run, whose times are of
    the first.
    """
    return {
        "monotonic_ns": time.monotonic_ns(),
        "boot_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        "wall_ns": time.time_ns(),
    }
