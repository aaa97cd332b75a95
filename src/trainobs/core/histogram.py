"""Reading log2 latency histograms, for sinks, steps and analysis alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import BUCKETS, FileClass, Op
from trainobs.core.quotients import divided

EDGES_NS: npt.NDArray[np.float64] = np.exp2(np.arange(BUCKETS + 1, dtype=np.float64))
"""Bucket b counts latencies of [EDGES_NS[b], EDGES_NS[b + 1]) nanoseconds; shape (BUCKETS + 1,)."""


@dataclass(frozen=True)
class Latency:
    """A latency distribution worth showing: some ops on some file classes (empty: all)."""

    name: str
    title: str
    op: Op
    file_class: FileClass | None = None

    def total(self, buckets: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Sum of `buckets` (op, class, role, BUCKETS) over what is selected; shape (BUCKETS,)."""
        picked = buckets[self.op] if self.file_class is None else buckets[self.op, self.file_class]
        total: npt.NDArray[np.uint64] = picked.reshape(-1, BUCKETS).sum(axis=0, dtype=np.uint64)
        return total


BLOCK_READ = Latency("latency/block_read", "Block device reads", Op.BLOCK_READ)

LATENCIES = (
    Latency("latency/data_read", "Read calls on training data", Op.READ, FileClass.DATA),
    Latency(
        "latency/checkpoint_write", "Write calls on checkpoints", Op.WRITE, FileClass.CHECKPOINT
    ),
    Latency("latency/fsync", "Calls of the fsync family", Op.FSYNC),
    BLOCK_READ,
    Latency("latency/block_write", "Block device writes", Op.BLOCK_WRITE),
    Latency("latency/runqueue", "Waits for a CPU", Op.RUNQUEUE),
)
"""Every distribution that TensorBoard and the report show, in that order."""


def percentile(buckets: npt.NDArray[np.uint64], q: float) -> npt.NDArray[np.float64]:
    """Latency that a share `q` of the counted events did not exceed.

    Within its bucket the latency is interpolated as if the logarithms of the events were spread
    evenly: the tail of a latency distribution thins out, and spread on a linear scale it would look
    slower than it was. The result is at most a factor of two from the true one.

    Args:
        buckets: counts, shape (..., BUCKETS); leading axes are independent histograms.
        q: share of the events in [0, 1]; 0.99 for the p99.

    Returns:
        Nanoseconds, shape (...); NaN where a histogram is empty.

    Raises:
        ValueError: `q` is outside [0, 1], or the last axis is not `BUCKETS` long.

    Source: the interpolation of Prometheus for exponential histograms (`histogram_quantile`).
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"q is {q}; it is a share, 0.99 for the p99")
    if buckets.shape[-1] != BUCKETS:
        raise ValueError(f"last axis is {buckets.shape[-1]} long; a histogram has {BUCKETS}")
    counts = np.asarray(buckets, dtype=np.float64)
    upto = counts.cumsum(axis=-1)
    wanted = upto[..., -1] * q
    bucket = ((upto >= wanted[..., None]) & (upto > 0)).argmax(axis=-1)
    inside = np.take_along_axis(counts, bucket[..., None], axis=-1)[..., 0]
    below = np.take_along_axis(upto, bucket[..., None], axis=-1)[..., 0] - inside
    result: npt.NDArray[np.float64] = EDGES_NS[bucket] * np.exp2(divided(wanted - below, inside))
    return result
