"""Made-up runs whose time can be worked out by hand."""

from __future__ import annotations

import numpy as np

from trainobs.replay.handover import NO_DRAW, NOTHING
from trainobs.replay.predict import Replay
from trainobs.replay.simulate import simulate
from trainobs.replay.trace import Trace

MS = 1e6
STEPS = 120


def run(**changed: object) -> Trace:
    """Steps of 20 ms on a CPU, batches of 30 ms on another, one worker, four CPUs."""
    none = np.zeros(STEPS)
    fields = {
        "cpu": none + 20 * MS,
        "away": none,
        "queued": 0.0,
        "awaits": none,
        "checkpoint": none,
        "validation": none,
        "make_cpu": none + 30 * MS,
        "make_device": none,
        "make_sleep": none,
        "make_queued": 0.0,
        "is_first": none > 0,
        "start": 0.0,
        "other_start": (0.0, 0.0),
        "has_new_workers": True,
        "hand": NOTHING,
        "draw": NO_DRAW,
        "tensors": 2,
        "workers": 1,
        "prefetch": 2,
        "cpus": 4.0,
        "most_cpus": 4.0,
        "side": 0.0,
        "threads": 2,
        "concurrency": (1.0, 1.0),
        "handed_bytes": 1e6,
        "step": none + 30 * MS,
    }
    return Trace(**fields | changed)


def replay(trace: Trace) -> Replay:
    return Replay(trace, trace.step_ns)


def step_ms(trace: Trace, *, shared: bool = True) -> float:
    return simulate(trace, shared=shared)[trace.settled].mean() / MS
