"""Finished batches that their workers kept: while one makes the next batch, it may hold its lock.

A thread of the worker hands a finished batch over, and needs the lock of the interpreter for that.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from trainobs.replay.metric_columns import KEPT, Floats

MADE = "batch/made_compute_ns"
"""What workers computed to make batches, of whichever step."""

COLUMNS = (KEPT, MADE)

_TIMES = ("begin_ns", "end_ns", "fetch_begin_ns", "fetch_end_ns", "compute_ns")


def kept_columns(
    until: Floats, batches: Mapping[str, npt.NDArray[np.generic]]
) -> dict[str, Floats]:
    """Both for each step; unlike other columns also where nobody knows which step got a batch.

    Args:
        until: when the wait of each step was over, if it came first; ascending.
        batches: column of the table `batches` -> values, -1 for unknown.
    """
    worker = np.asarray(batches["worker"], np.int64)
    rows = np.flatnonzero(worker >= 0)
    if not len(rows) or not len(until):
        return {name: np.full(len(until), np.nan) for name in COLUMNS}
    begin, end, asked, there, compute = (np.asarray(batches[name], float)[rows] for name in _TIMES)
    maker = np.asarray(batches["loader"], np.int64)[rows] * (worker.max() + 1) + worker[rows]
    waits = there > np.maximum(asked, end)
    times = np.zeros(len(rows))
    for one in np.unique(maker[waits]):
        own = np.flatnonzero(maker == one)
        own = own[np.argsort(begin[own])]
        late = own[waits[own]]
        busy = [
            _busy_until(at[late], begin[own], end[own]) for at in (there, np.maximum(asked, end))
        ]
        times[late] = busy[0] - busy[1]
    return {
        KEPT: _by_step(until, asked, times),
        MADE: _by_step(until, end, np.maximum(0.0, compute)),
    }


def _busy_until(at: Floats, begin: Floats, end: Floats) -> Floats:
    """How long a worker had made batches by some times, of batches one after another."""
    index = np.searchsorted(begin, at, "right") - 1  # each time lies behind the end of a batch
    before = np.cumsum(end - begin) - (end - begin)
    busy: Floats = before[index] + np.minimum(at, end[index]) - begin[index]
    return busy


def _by_step(until: Floats, at: Floats, values: Floats) -> Floats:
    step = np.searchsorted(until, at)
    is_in = (step < len(until)) & (at >= 0)
    return np.bincount(step[is_in], values[is_in], len(until)).astype(np.float64)
