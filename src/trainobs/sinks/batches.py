"""What sinks do with a batch of steps: cut it, and hold its metrics as one matrix."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainobs.core.catalogue import STEP_METRICS
from trainobs.core.records import StepBatch


def select(batch: StepBatch, rows: slice | npt.NDArray[np.bool_]) -> StepBatch:
    """Some steps of a batch."""
    return StepBatch(
        step=batch.step[rows],
        epoch=batch.epoch[rows],
        start_ns=batch.start_ns[rows],
        columns={name: column[rows] for name, column in batch.columns.items()},
        cells=None if batch.cells is None else batch.cells[rows],
        latency=None if batch.latency is None else batch.latency[rows],
        batches=None,  # they are not of one step each
        lookups=None if batch.lookups is None else _of_steps(batch.lookups, batch.step[rows]),
    )


def _of_steps(lookups: npt.NDArray[np.void], steps: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
    return lookups[np.isin(lookups["step"], steps)]


def metric_matrix(batch: StepBatch) -> npt.NDArray[np.float64]:
    """Values of every metric with a value for each step, in their order.

    Returns:
        A copy of shape (len(batch), len(STEP_METRICS)); NaN where a metric is missing or undefined.
    """
    matrix = np.full((len(batch), len(STEP_METRICS)), np.nan)
    for index, metric in enumerate(STEP_METRICS):
        column = batch.columns.get(metric.name)
        if column is not None:
            matrix[:, index] = column
    return matrix
