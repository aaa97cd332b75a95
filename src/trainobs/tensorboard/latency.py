"""Latency distributions for TensorBoard's histogram page."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainobs.core.histogram import EDGES_NS, LATENCIES, Latency
from trainobs.core.metrics import TAGS
from trainobs.tensorboard import protos

EDGES_MS = EDGES_NS / 1e6
MIDDLES_MS = (EDGES_MS[:-1] + EDGES_MS[1:]) / 2

SHOWN = 0.99
"""Share of the time that is shown, that of the fastest events: the page has a linear axis only."""


def latency_tag(latency: Latency) -> str:
    """Tag of a distribution: `trainobs/latency_by_time/data_read_ms`."""
    return f"{TAGS}latency_by_time/{latency.name.removeprefix('latency/')}_ms"


def latency_values(buckets: npt.NDArray[np.uint64]) -> list[protos.Summary.Value]:
    """Histograms of the events counted in `buckets`: how much time went to events of what length.

    An event weighs as much as it took. By number of events, the page's linear axis would have one
    bar, of all that memory served in microseconds, and a long nothing.

    Args:
        buckets: shape (op, class, role, BUCKETS).

    Returns:
        One value for each distribution of `LATENCIES` in which there was an event.
    """
    return [
        protos.Summary.Value(tag=latency_tag(latency), histo=_histogram(counts))
        for latency in LATENCIES
        if (counts := latency.total(buckets)).any()
    ]


def _histogram(counts: npt.NDArray[np.uint64]) -> protos.HistogramProto:
    """Buckets from the first that is not empty on, below them an empty one as a floor."""
    time = counts * MIDDLES_MS
    upto = time.cumsum()
    first = int(np.flatnonzero(counts)[0])
    last = int(np.argmax(upto >= SHOWN * upto[-1]))
    inside, middle = time[first : last + 1], MIDDLES_MS[first : last + 1]
    return protos.HistogramProto(
        min=EDGES_MS[first],
        max=EDGES_MS[last + 1],
        num=inside.sum(),
        sum=(inside * middle).sum(),
        sum_squares=(inside * middle**2).sum(),
        bucket_limit=EDGES_MS[first : last + 2],
        bucket=[0.0, *inside],
    )
