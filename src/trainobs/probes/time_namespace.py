"""Clocks of processes in a time namespace, which a container may have (time_namespaces(7))."""

from __future__ import annotations

import os
import time
from pathlib import Path


def clock_ahead_ns(tgid: int | str = "self") -> int:
    """CLOCK_MONOTONIC of a process, less that of the kernel, which programs read.

    The file tells of the namespace in which its children will be. Where that is another one than
    its own, its own is taken for the first one, which has no offsets. Of another process this takes
    the rights to look into it.

    Args:
        tgid: the process, as this process sees it.

    Returns:
        ns; 0 where the process is gone or hidden, or the kernel is older than 5.6.
    """
    place = Path("/proc", str(tgid))
    try:
        if os.readlink(place / "ns/time") != os.readlink(place / "ns/time_for_children"):
            return 0
        lines = (place / "timens_offsets").read_text().splitlines()
        offsets = {clock: (int(s), int(ns)) for clock, s, ns in map(str.split, lines)}
        seconds, ns = offsets["monotonic"]
    except (OSError, ValueError, KeyError):
        return 0
    return seconds * 10**9 + ns


def kernel_now_ns() -> int:
    """CLOCK_MONOTONIC of the kernel, which programs read, wherever this process is."""
    return time.monotonic_ns() - clock_ahead_ns()
