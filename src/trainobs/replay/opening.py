"""What the first batch of a worker takes beyond others: files it opens, modules, connections.

Each new worker does that again; who makes the batches all along does it once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

import numpy as np
import numpy.typing as npt

from trainobs.replay.metric_columns import Floats
from trainobs.replay.trace import Trace

FEWEST_PASSES = 2
"""Below which the first batches of passes say nothing: one may be the longest by chance."""


def without_opening(trace: Trace) -> Trace:
    """Each batch takes what is usual, as of workers that live on."""
    if not trace.has_new_workers:
        return trace
    at = _firsts(trace, trace.workers)
    return replace(
        trace,
        make_cpu=usual(trace.make_cpu, at),
        make_device=usual(trace.make_device, at),
        make_sleep=usual(trace.make_sleep, at),
    )


def surely_opened(trace: Trace) -> tuple[Floats, Floats]:
    """CPU time and sleep of each batch that are surely for its maker's being new; shape (n,).

    A data set that is not told where a pass begins, and is read in another order in each, has no
    other reason to take longer for the first batch of each worker than for any other batch of the
    pass. By the median of the passes: once in a while the longest batch is the first.
    """
    at = _firsts(trace, trace.workers)
    if not trace.tells_opening or not at.any():
        return np.zeros(len(trace)), np.zeros(len(trace))
    return _beyond_others(trace, trace.make_cpu, at), _beyond_others(trace, trace.make_sleep, at)


def _beyond_others(trace: Trace, ns: Floats, at: npt.NDArray[np.bool_]) -> Floats:
    found = list(_excess_of_passes(trace, ns, at))
    sure = max(0.0, float(np.median(found))) if len(found) >= FEWEST_PASSES else 0.0
    return np.where(at, np.minimum(ns, sure), 0.0)


def _excess_of_passes(trace: Trace, ns: Floats, at: npt.NDArray[np.bool_]) -> Iterator[float]:
    """By how much each first batch of a pass is longer than the longest other one, at least."""
    for of_pass in np.split(np.arange(len(trace)), np.flatnonzero(trace.is_first))[1:]:
        firsts, others = ns[of_pass[at[of_pass]]], ns[of_pass[~at[of_pass]]]
        yield float(firsts.min() - others.max()) if len(others) else -inf


def without_surely_opened(trace: Trace) -> Trace:
    """Workers that live on, as far as it is sure what they take no more."""
    cpu, sleep = surely_opened(trace)
    return replace(trace, make_cpu=trace.make_cpu - cpu, make_sleep=trace.make_sleep - sleep)


def with_opening(trace: Trace, workers: int, cpu: float, sleep: float) -> Trace:
    """The first batch of each of so many new workers takes more of these, ns.

    What a worker waits for a device is in memory for the next one.
    """
    at = _firsts(trace, workers)
    return replace(
        trace, make_cpu=trace.make_cpu + at * cpu, make_sleep=trace.make_sleep + at * sleep
    )


def opened_by(trace: Trace, workers: int) -> Trace:
    """As many other workers each take as long to begin as those that there are."""
    at, least = _firsts(trace, trace.workers), without_opening(trace)
    if least is trace or not at.any():
        return trace
    cpu = float((trace.make_cpu - least.make_cpu)[at].mean())
    return with_opening(
        least, workers, cpu, float((trace.make_sleep - least.make_sleep)[at].mean())
    )


def usual(ns: Floats, at: npt.NDArray[np.bool_]) -> Floats:
    """Times of which those at some places are as long as the others, at most.

    Where there are no others nobody knows what is usual: at best there is nothing to do.
    """
    if at.all():
        return 0.0 * ns
    return np.where(at, np.minimum(ns, np.median(ns[~at])), ns)


def _firsts(trace: Trace, workers: int) -> npt.NDArray[np.bool_]:
    """Which batches are the first of one of so many workers in a pass."""
    at = np.flatnonzero(trace.is_first)[:, None] + np.arange(workers)
    firsts = np.zeros(len(trace), np.bool_)
    firsts[at[at < len(trace)]] = True
    return firsts
