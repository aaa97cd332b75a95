"""What the Python interpreter did beside the training loop's own work."""

from __future__ import annotations

from trainobs.core.abi import Op, Phase
from trainobs.core.catalogue.making import MAIN, by_phase, kernel
from trainobs.core.metrics import Cells, Metric, MetricKind

PYTHON: tuple[Metric, ...] = (
    Metric(
        "python/gc_ns",
        "ns",
        MetricKind.SUM,
        "gc.callbacks",
        "Time in Python's garbage collector, which stops every thread of the training process.",
        "Collections in loader workers.",
        "Garbage collector",
    ),
    Metric(
        "python/gc_count",
        "collections",
        MetricKind.SUM,
        "gc.callbacks",
        "Collections of Python's garbage collector, of all generations.",
        "Collections in loader workers.",
    ),
    kernel(
        "python/gil_wait_ns",
        Cells("wait_ns", (Op.AWAIT,), (), MAIN),
        "Time the training thread slept until another thread of its process released the "
        "interpreter lock, in every phase.",
        source="sched_switch",
        blind="Recognized by the time limit of the wait, 5 ms: with a longer sys.setswitchinterval "
        "it counts in sched/main_await_ns, and other waits with a limit of 5 ms or less count "
        "here.",
    ),
    kernel(
        "python/wait_gil_ns",
        by_phase("bytes", Op.PHASE_OFF, Phase.LOADER),
        "The part of python/gil_wait_ns in loader/wait_ns.",
        unit="ns",
        source="sched_switch",
    ),
)
