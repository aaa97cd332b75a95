"""The version of the running kernel, and what depends on it alone."""

from __future__ import annotations

import platform
import re

_PREEMPTIBLE = (7, 0)


def kernel_version() -> tuple[int, int]:
    """Major and minor."""
    major, minor = re.findall(r"\d+", platform.release())[:2]
    return int(major), int(minor)


def may_lose_cpu(version: tuple[int, int] | None = None) -> bool:
    """Whether a task may lose its CPU in a program of a tracepoint: bpf/preemption.h.

    Args:
        version: of a kernel; by default the running one.
    """
    return (version or kernel_version()) >= _PREEMPTIBLE
