"""Latency distributions for TensorBoard's histogram page."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from tensorboard.compat.proto.histogram_pb2 import HistogramProto
from tensorboard.compat.proto.summary_pb2 import Summary

from trainobs.core.histogram import EDGES_NS, LATENCIES

UNIT = "log10_us"
"""TensorBoard's histogram page has a linear axis only, on which a log2 histogram is one bar and a
long nothing. So it gets the logarithm: 0 is 1 us, 3 is 1 ms, 6 is 1 s."""

EDGES = np.log10(EDGES_NS / 1e3)


def latency_values(buckets: npt.NDArray[np.uint64]) -> list[Summary.Value]:
    """Histograms, tagged `latency/..._log10_us`, of the events counted in `buckets`.

    Args:
        buckets: shape (op, class, role, BUCKETS).

    Returns:
        One value for each distribution of `LATENCIES` in which there was an event.
    """
    return [
        Summary.Value(tag=f"{latency.name}_{UNIT}", histo=_histogram(counts))
        for latency in LATENCIES
        if (counts := latency.total(buckets)).any()
    ]


def _histogram(counts: npt.NDArray[np.uint64]) -> HistogramProto:
    """Buckets from the first to the last that is not empty, below them an empty one as a floor."""
    used = np.flatnonzero(counts)
    first, last = int(used[0]), int(used[-1])
    inside = counts[first : last + 1].astype(np.float64)
    middle = (EDGES[first : last + 1] + EDGES[first + 1 : last + 2]) / 2
    return HistogramProto(
        min=EDGES[first],
        max=EDGES[last + 1],
        num=inside.sum(),
        sum=(inside * middle).sum(),
        sum_squares=(inside * middle**2).sum(),
        bucket_limit=EDGES[first : last + 2],
        bucket=[0.0, *inside],
    )
