"""What the machine lacked: pressure, and memory."""

from __future__ import annotations

from trainobs.core.metrics import Kind, Metric

MACHINE: tuple[Metric, ...] = (
    *(
        Metric(
            f"pressure/{resource}_ns",
            "ns",
            Kind.SUM,
            f"/proc/pressure/{resource}",
            f"Time in which some task of the whole machine waited for {what}.",
            "Whose task it was. Logged on the procfs rung only.",
        )
        for resource, what in {"cpu": "a CPU", "io": "I/O", "memory": "memory"}.items()
    ),
    Metric(
        "memory/major_fault_count",
        "faults",
        Kind.SUM,
        "getrusage",
        "Page faults of the training process that had to read from a device.",
        "Faults of loader workers.",
    ),
)
