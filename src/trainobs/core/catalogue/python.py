"""What the Python interpreter did beside the training loop's own work."""

from __future__ import annotations

from trainobs.core.metrics import Kind, Metric

PYTHON: tuple[Metric, ...] = (
    Metric(
        "python/gc_ns",
        "ns",
        Kind.SUM,
        "gc.callbacks",
        "Time in Python's garbage collector, which stops every thread of the training process.",
        "Collections in loader workers.",
        "Python",
    ),
    Metric(
        "python/gc_count",
        "collections",
        Kind.SUM,
        "gc.callbacks",
        "Collections of Python's garbage collector, of all generations.",
        "Collections in loader workers.",
    ),
)
