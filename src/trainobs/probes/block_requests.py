"""Block requests that the kernel began, and of which it told no end."""

from __future__ import annotations

import numpy as np

from trainobs.core.abi import Role
from trainobs.probes.map_entries import entries

REQUEST_KEY = np.dtype([("address", "<u8")])
REQUEST = np.dtype(
    [("ns", "<u8"), ("class", "<u4"), ("role", "<u4"), ("slot", "<u4"), ("use", "<u4")]
)
"""`struct request_start` of bpf/block.bpf.h."""

OVERDUE_NS = 200_000_000
"""How long devices take at most, unless they are very busy. It is lost all the same: what has not
ended is in no number."""


def overdue(descriptor: int, slot: int, since_ns: int, now_ns: int) -> int:
    """How many requests of a session should have ended.

    Some kernels of virtual machines hide a process, and the interrupts that come in it, from all
    programs. A request that ends in one is told as lost by the kernel side as soon as its structure
    is used again: these are those that wait for that.

    Args:
        descriptor: of the map `requests`.
        slot: of the session.
        since_ns: when the session began, of the kernel's CLOCK_MONOTONIC.
        now_ns: of the same clock.

    Raises:
        OSError: the kernel does not tell.
    """
    count = 0
    for _, found in entries(descriptor, REQUEST_KEY, REQUEST):
        is_own = (found["slot"] == slot) & (found["role"] != Role.KERNEL)
        is_due = (found["ns"] >= since_ns) & (found["ns"] < now_ns - OVERDUE_NS)
        count += int((is_own & is_due).sum())
    return count
