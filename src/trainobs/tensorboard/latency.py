"""Latency distributions for TensorBoard's histogram page."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from tensorboard.compat.proto.histogram_pb2 import HistogramProto
from tensorboard.compat.proto.summary_pb2 import Summary

from trainobs.core.histogram import EDGES_NS, LATENCIES
from trainobs.core.metrics import TAGS

EDGES_MS = EDGES_NS / 1e6

SHOWN = 0.99
"""Share of the events that is shown, the fastest of them. TensorBoard's histogram page has a linear
axis only: a single slow event would make it one bar and a long nothing."""


def latency_values(buckets: npt.NDArray[np.uint64]) -> list[Summary.Value]:
    """Histograms, tagged `trainobs/latency/..._ms`, of the events counted in `buckets`.

    Args:
        buckets: shape (op, class, role, BUCKETS).

    Returns:
        One value for each distribution of `LATENCIES` in which there was an event.
    """
    return [
        Summary.Value(tag=f"{TAGS}{latency.name}_ms", histo=_histogram(counts))
        for latency in LATENCIES
        if (counts := latency.total(buckets)).any()
    ]


def _histogram(counts: npt.NDArray[np.uint64]) -> HistogramProto:
    """Buckets from the first with an event to that of the 99th percentile.

    Below them is an empty one as a floor.
    """
    upto = counts.cumsum()
    first = int(np.flatnonzero(counts)[0])
    last = int(np.argmax(upto >= SHOWN * upto[-1]))
    inside = counts[first : last + 1].astype(np.float64)
    middle = (EDGES_MS[first : last + 1] + EDGES_MS[first + 1 : last + 2]) / 2
    return HistogramProto(
        min=EDGES_MS[first],
        max=EDGES_MS[last + 1],
        num=inside.sum(),
        sum=(inside * middle).sum(),
        sum_squares=(inside * middle**2).sum(),
        bucket_limit=EDGES_MS[first : last + 2],
        bucket=[0.0, *inside],
    )
