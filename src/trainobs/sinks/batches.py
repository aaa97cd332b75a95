"""What sinks do with a batch of steps: cut it, and hold its metrics as one matrix."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainobs.core.catalogue import CATALOGUE
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
    )


def metric_matrix(batch: StepBatch) -> npt.NDArray[np.float64]:
    """Values of every metric of the catalogue, in its order.

    Returns:
        A copy of shape (len(batch), len(CATALOGUE)); NaN where a metric is missing or undefined.
    """
    matrix = np.full((len(batch), len(CATALOGUE)), np.nan)
    for index, metric in enumerate(CATALOGUE):
        column = batch.columns.get(metric.name)
        if column is not None:
            matrix[:, index] = column
    return matrix
