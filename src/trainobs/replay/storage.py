"""What a record tells of the storage behind makers of batches: who waited for it, how evenly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from trainobs.replay.metric_columns import BESIDE, REQUESTS, STORAGE, Floats, mean

PACED_STEPS = 8
"""Steps in which a device that lets through so many bytes a second evens out what they wait."""

SURE = 3.0
"""Standard errors within which a slope is taken to lie."""

UNEVEN, EVENED = 0.7, 1.7
"""Of a device that may do so: deviation of single waits, as a share of their mean, at least; and
variance of sums of them, as a share of what it were if each knew nothing of the others, at most.
Under a limit of a control group these were 1 to 5 and 0.35 to 1.63 (9 of 10 runs), on other devices
0.15 and 2 to 5."""


def others_read(columns: Mapping[str, Floats], made: Mapping[str, Floats], workers: int) -> float:
    """Share of the sleep of makers of batches that may be for what others read from a device."""
    slept = float(made["sleep_ns"].mean())
    device = float(made["device_ns"].mean())
    reads = asleep_for_storage((mean(columns.get(name)) for name in STORAGE), device)
    if not workers:
        reads = max(reads, beside_for_storage(mean(columns.get(name)) for name in BESIDE))
    # Reads of no known file may be other threads', if makers of batches hardly slept for any.
    requests = mean(columns.get(REQUESTS)) - 10 * device
    reads = max(reads, requests if requests > 0 else 0.0)
    return min(1.0, reads / slept) if slept else 0.0


def may_be_paced(device_ns: Floats, step_ns: Floats) -> bool:
    """Whether a device may let through so many bytes a second, where nobody reads ahead.

    Then what goes on beside its reads saves nothing. Of such a device, who computes for longer
    before a read waits the shorter for it. Of another one the wait is as long as it is. Where steps
    are too even to tell, it may be either.
    """
    if len(device_ns) < 4 * PACED_STEPS or device_ns.mean() < 0.1 * step_ns.mean():
        return False
    before = (step_ns - device_ns)[:-1]
    before, waits = before - before.mean(), device_ns[1:] - device_ns[1:].mean()
    spread = float((before**2).sum())
    if not spread:
        return True
    slope = float((before * waits).sum()) / spread
    error = float(np.sqrt(((waits - slope * before) ** 2).mean() / spread))
    return slope - SURE * error < -0.5


def is_paced(device_ns: Floats, step_ns: Floats) -> bool:
    """Whether who found the device slow finds it fast thereafter, as under a limit by time.

    To overlap reads with other work brings nothing then, nor does a faster step.
    """
    whole = len(device_ns) // PACED_STEPS * PACED_STEPS
    if whole < 4 * PACED_STEPS or device_ns.mean() < 0.1 * step_ns.mean():
        return False
    single = float(device_ns[:whole].var())
    sums = float(device_ns[:whole].reshape(-1, PACED_STEPS).sum(axis=1).var())
    is_uneven = bool(single >= (UNEVEN * device_ns.mean()) ** 2)
    return is_uneven and bool(sums <= EVENED * PACED_STEPS * single)


def asleep_for_storage(storage: Iterable[float], device: float) -> float:
    """How long threads waited for storage, beside what makers of batches are known to have.

    It may be a maker itself: who reads directly from a network sleeps there for no block device.

    Args:
        storage: means of `STORAGE`, NaN for unknown.
        device: how long the makers of batches slept for a device.
    """
    read_ns, stalled, iowait_ns = storage
    found = (read_ns * stalled - device, iowait_ns - device)
    return max((ns for ns in found if ns > 0), default=0.0)


def beside_for_storage(beside: Iterable[float]) -> float:
    """How long threads and processes of the run waited for storage that are no workers.

    Args:
        beside: means of `BESIDE`, NaN for unknown.
    """
    iowait, synced, synced_here, requests = beside
    waited = iowait - float(np.nan_to_num(max(0.0, synced - synced_here)))
    return waited if requests > 0 and waited > 0 else 0.0
