"""What the machine lacked: pressure, and memory."""

from __future__ import annotations

from trainobs.core.abi import Op
from trainobs.core.catalogue.making import MAIN, kernel
from trainobs.core.metrics import Cells, Metric, MetricKind

_BETWEEN = "Read about once a second, and spread evenly in between."

MACHINE: tuple[Metric, ...] = (
    *(
        Metric(
            f"pressure/{resource}_ns",
            "ns",
            MetricKind.SUM,
            f"/proc/pressure/{resource}",
            f"Time in which some task of the whole machine waited for {what}.",
            "Whose task it was. Beside eBPF it is read four times a second, and spread evenly over "
            "the steps in between.",
        )
        for resource, what in {"cpu": "a CPU", "io": "I/O", "memory": "memory"}.items()
    ),
    Metric(
        "memory/major_fault_count",
        "faults",
        MetricKind.SUM,
        "getrusage",
        "Page faults of the training process that had to read from a device.",
        "Faults of loader workers: see memory/worker_major_fault_count. Beside eBPF it is read "
        "four times a second, and spread evenly over the steps in between.",
    ),
    Metric(
        "memory/worker_major_fault_count",
        "faults",
        MetricKind.SUM,
        "/proc/PID/stat",
        "Page faults of loader workers that had to read from a device.",
        f"Those after the last reading of a worker that ended. {_BETWEEN}",
    ),
    Metric(
        "memory/worker_rss_bytes",
        "bytes",
        MetricKind.GAUGE,
        "/proc/PID/stat",
        "Memory of all loader workers (resident set), read about once a second.",
        "Pages that processes share count in each of them: a fork shares all until it writes.",
    ),
    Metric(
        "memory/numa_remote_bytes",
        "bytes",
        MetricKind.SUM,
        "/sys/devices/system/node/node*/numastat",
        "Memory of the whole machine that was allocated on another NUMA node than that of the CPU "
        "that asked for it.",
        "Whose it was, and from which node it is used later. A machine of one node has none, and "
        f"the column is null. {_BETWEEN}",
    ),
    Metric(
        "memory/refault_count",
        "pages",
        MetricKind.SUM,
        "memory.stat",
        "Pages of files that the control group of this process read again, because it had been "
        "short of memory since it read them last.",
        f"Whether this process read them, or another of its group. {_BETWEEN}",
    ),
    Metric(
        "memory/oom_kill_count",
        "processes",
        MetricKind.SUM,
        "the control group, /proc/vmstat",
        "Processes of the control group of this process that the kernel's OOM killer killed; where "
        "the group does not tell, those of the whole machine (host.oom_kills_of).",
        "Which these were: another job of the group may be among them, and a writer process of "
        "this run goes first. Each rank of a group counts the same ones. Groups below it count in "
        "version 2 only. Read about once a second, and as steps are recorded: a step may have "
        "those of a step beside it. What follows the last record of a training that was killed.",
    ),
    Metric(
        "memory/high_count",
        "times",
        MetricKind.SUM,
        "memory.events.local",
        "How often a control group of this process was found beyond its memory.high: those in it "
        "free memory then, and are put to sleep.",
        f"Groups of version 1, and those above the one that a container shows. {_BETWEEN}",
    ),
    Metric(
        "memory/stalled_ns",
        "ns",
        MetricKind.SUM,
        "memory.pressure",
        "Time in which some task of the control group of this process was held up for want of "
        "memory: it freed some, read back what was taken, or slept beyond memory.high.",
        f"Whose task it was; groups of version 1. {_BETWEEN}",
    ),
    kernel(
        "memory/reclaim_ns",
        Cells("ns", (Op.RECLAIM,)),
        "Time that tasks of the process tree spent on freeing memory before they got any, because "
        "the machine had none left or their cgroup was at its limit.",
        source="mm_vmscan_direct_reclaim_begin, mm_vmscan_memcg_reclaim_begin",
        blind="What kswapd freed in the background.",
    ),
    kernel(
        "memory/main_reclaim_ns",
        Cells("ns", (Op.RECLAIM,), (), MAIN),
        "The part of memory/reclaim_ns that the training thread spent.",
        source="mm_vmscan_direct_reclaim_begin, mm_vmscan_memcg_reclaim_begin",
    ),
    kernel(
        "memory/reclaim_bytes",
        Cells("bytes", (Op.RECLAIM,)),
        "Memory freed in memory/reclaim_ns.",
        source="mm_vmscan_direct_reclaim_end, mm_vmscan_memcg_reclaim_end",
    ),
)
