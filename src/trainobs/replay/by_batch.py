"""Steps that get several batches, as one step for each: it accumulates their gradients.

Batches are made, handed over and fetched ahead one by one. So a replay knows one a step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from trainobs.replay.metric_columns import (
    BATCH_BYTES,
    BATCH_MARKS,
    BATCH_TIMES,
    COUNT,
    STORAGE,
    Floats,
)

Longs = npt.NDArray[np.int64]

_WHOLE = {f"batch/{name}" for name in BATCH_MARKS} | {STORAGE[1]}
"""Moments and ratios, which are not divided."""

_MADE = tuple(f"batch/{name}" for name in (*BATCH_TIMES, *BATCH_BYTES))


def counts_of(columns: Mapping[str, Floats], length: int) -> Longs:
    """How many batches each of some steps got, at least one; shape (n,)."""
    told = columns.get(COUNT, np.ones(length))
    return np.maximum(1, np.nan_to_num(told, nan=1.0)).astype(np.int64)


def by_batch(
    columns: Mapping[str, Floats], counts: Longs, is_first: npt.NDArray[np.bool_], workers: int
) -> Mapping[str, Floats]:
    """Columns of batches, of which each has its part of its step.

    Nobody knows how a step was divided among its batches, but for the first of a pass: what they
    took to be made beyond others is taken to be for a first batch of each worker.

    Args:
        columns: of steps, each of shape (n,).
        counts: from `counts_of`.
        is_first: whether a step is the first of a pass, of each.
        workers: of the loader.
    """
    if (counts == 1).all():
        return columns
    parts = {
        name: np.repeat(column if name in _WHOLE else column / counts, counts)
        for name, column in columns.items()
    }
    first_of_step = np.cumsum(counts) - counts
    for name in _MADE:
        if name not in columns or is_first.all():
            continue
        usual = float(np.nanmedian((columns[name] / counts)[~is_first]))
        for step in np.flatnonzero(is_first):
            begin, count = int(first_of_step[step]), int(counts[step])
            beyond = columns[name][step] - usual * count
            new = min(count, max(1, workers))
            if beyond > 0 and new < count:
                parts[name][begin : begin + count] = usual
                parts[name][begin : begin + new] += beyond / new
    return parts
