"""What the machine lacked: pressure, and memory."""

from __future__ import annotations

from trainobs.core.catalogue.making import kernel
from trainobs.core.kernel import Op
from trainobs.core.metrics import Cells, Kind, Metric

_BETWEEN = "Read about once a second, and laid evenly over the time between two readings."

MACHINE: tuple[Metric, ...] = (
    *(
        Metric(
            f"pressure/{resource}_ns",
            "ns",
            Kind.SUM,
            f"/proc/pressure/{resource}",
            f"Time in which some task of the whole machine waited for {what}.",
            "Whose task it was. Beside eBPF it is read as steps are collected, up to four times a "
            "second, and laid evenly over the steps in between.",
            "Pressure (whole machine)",
        )
        for resource, what in {"cpu": "a CPU", "io": "I/O", "memory": "memory"}.items()
    ),
    Metric(
        "memory/major_fault_count",
        "faults",
        Kind.SUM,
        "getrusage",
        "Page faults of the training process that had to read from a device.",
        "Faults of loader workers: see memory/worker_major_fault_count.",
        "Major faults",
    ),
    Metric(
        "memory/worker_major_fault_count",
        "faults",
        Kind.SUM,
        "/proc/PID/stat",
        "Page faults of loader workers that had to read from a device.",
        f"Those after the last reading of a worker that ended. {_BETWEEN}",
        "Major faults",
    ),
    Metric(
        "memory/worker_rss_bytes",
        "bytes",
        Kind.GAUGE,
        "/proc/PID/stat",
        "Memory of all loader workers (resident set), read about once a second.",
        "Pages that processes share count in each of them: a fork shares all until it writes.",
        "Memory of loader workers",
    ),
    kernel(
        "memory/reclaim_ns",
        "ns",
        Cells("ns", (Op.RECLAIM,)),
        "Time that tasks of the process tree spent on freeing memory before they got any, because "
        "the machine had none left or their cgroup was at its limit.",
        source="mm_vmscan_direct_reclaim_begin, mm_vmscan_memcg_reclaim_begin",
        blind="What kswapd freed in the background.",
        chart="Memory reclaim",
    ),
    kernel(
        "memory/reclaim_bytes",
        "bytes",
        Cells("bytes", (Op.RECLAIM,)),
        "Memory freed in memory/reclaim_ns.",
        source="mm_vmscan_direct_reclaim_end, mm_vmscan_memcg_reclaim_end",
    ),
)
