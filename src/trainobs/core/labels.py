"""What metrics are called where people read them: in the report's tables and in verdicts."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trainobs.core.abi import Phase
from trainobs.core.catalogue import phase_metric
from trainobs.core.catalogue.named import named_phase
from trainobs.core.own_counter import OWN

PHASES: Mapping[Phase, str] = {
    Phase.LOADER: "waiting for data",
    Phase.TRANSFER: "moving the batch to the device",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
    Phase.CHECKPOINT: "saving a checkpoint",
    Phase.VALIDATION: "validation",
    Phase.LOGGING: "logging",
    Phase.OTHER: "everything else",
}

WAITS: Mapping[str, str] = {
    "sched/main_offcpu_ns": "training thread off the CPU",
    "sched/main_iowait_ns": "  asleep for a device",
    "sched/main_runqueue_ns": "  ready to run, no CPU free",
    "sched/main_stopped_ns": "  stopped, by a signal or debugger",
    "sched/worker_iowait_ns": "loader workers asleep for a device",
    "sched/worker_runqueue_ns": "loader workers ready to run, no CPU",
    "io/data_read_ns": "inside read calls on training data",
    "io/checkpoint_write_ns": "inside write calls on checkpoints",
    "io/fsync_ns": "inside fsync and its like",
    "io/main_fsync_ns": "training thread inside fsync",
    "sched/main_await_ns": "training thread waits for another",
    "python/gil_wait_ns": "training thread waits for the GIL",
    "memory/reclaim_ns": "freeing memory before getting any",
    "pressure/cpu_ns": "some task short of CPU (machine)",
    "pressure/io_ns": "some task waiting for I/O (machine)",
    "pressure/memory_ns": "some task short of memory (machine)",
}

_MORE: Mapping[str, str] = {
    "loader/device_ns": "  loader reads from storage",
    "loader/cpu_wait_ns": "  loader has no CPU",
    "loader/compute_ns": "  loader computes",
    "loader/sleep_ns": "  loader asleep otherwise",
    "loader/handover_ns": "  batches made, not yet received",
    "loader/start_stop_ns": "  loaders starting and ending",
    "loader/worker_start_stop_ns": "    workers, at least",
    "python/wait_gil_ns": "  waiting for the GIL meanwhile",
    "sched/wait_offcpu_ns": "  asleep, or no CPU, while it waits",
    "sched/work_runqueue_ns": "  ready to run in the step, no CPU",
    "sched/work_iowait_ns": "  asleep for a device in the step",
    "sched/work_stopped_ns": "stopped, by a signal or debugger",
    "sched/frozen_ns": "frozen control group",
    "sched/thread_iowait_ns": "other threads asleep for a device",
    "sched/thread_runqueue_ns": "other threads ready to run, no CPU",
    "sched/thread_cpu_ns": "CPU time of other threads",
    "sched/worker_cpu_ns": "CPU time of loader workers",
    "sched/child_cpu_ns": "CPU time of other child processes",
    "sched/others_cpu_ratio": "CPU taken by other processes",
    "sched/transfer_sleep_ns": "asleep or stopped in transfer",
    "sched/forward_sleep_ns": "asleep or stopped in forward",
    "sched/backward_sleep_ns": "asleep or stopped in backward",
    "sched/optimizer_sleep_ns": "asleep or stopped in optimizer",
    "sched/other_sleep_ns": "asleep or stopped in other code",
    "python/gc_ns": "Python's garbage collector",
    "ranks/wait_ns": "waiting in collectives",
    "memory/major_fault_count": "page faults that read from a device",
    "memory/refault_count": "pages read again for want of memory",
    "memory/high_count": "control group beyond memory.high",
    "memory/stalled_ns": "control group held up for memory",
    "memory/numa_remote_bytes": "from another NUMA node (machine)",
}

BYTES: Mapping[str, str] = {
    "io/data_read_bytes": "training data read",
    "cache/miss_bytes": "data brought into memory by reads",
    "cache/hint_bytes": "data brought in by read-ahead hints",
    "cache/fault_fill_bytes": "mapped data brought in",
    "io/checkpoint_write_bytes": "checkpoints written",
    "io/library_read_bytes": "code and libraries read",
    "block/read_bytes": "read from block devices",
    "block/data_read_bytes": "  of it training data",
    "block/library_read_bytes": "  of it code and libraries",
    "block/write_bytes": "written to block devices",
    "net/sent_bytes": "sent over the network",
    "net/received_bytes": "received over the network",
    "gpu/pcie_received_bytes": "host to GPU over PCIe",
    "gpu/pcie_sent_bytes": "GPU to host over PCIe",
    "gpu/nvlink_received_bytes": "received over NVLink",
    "gpu/nvlink_sent_bytes": "sent over NVLink",
    "io/read_bytes": "all read calls",
    "io/write_bytes": "all write calls",
}

CACHE: Mapping[str, str] = {
    "cache/hit_ratio": "page cache hits, of pages asked for",
    "cache/demand_hit_ratio": "data reads that waited for no read-ahead",
    "cache/read_stall_ratio": "time in data reads, asleep",
}

GPU: Mapping[str, str] = {
    "gpu/transfer_ns": "transfer, on the GPU",
    "gpu/forward_ns": "forward, on the GPU",
    "gpu/backward_ns": "backward, on the GPU",
    "gpu/optimizer_ns": "optimizer, on the GPU",
    "gpu/sm_active_ratio": "multiprocessors at work (cycles)",
    "gpu/sm_occupancy_ratio": "warps resident (cycles)",
    "gpu/tensor_active_ratio": "tensor cores at work (cycles)",
    "gpu/dram_active_ratio": "memory moving data (cycles)",
    "gpu/sm_clock_mhz": "clock of the multiprocessors",
    "gpu/throttle_power_ratio": "clocks held down by the power limit",
    "gpu/throttle_thermal_ratio": "clocks held down by heat",
    "gpu/throttle_hardware_ratio": "clocks held down by the hardware",
    "gpu/memory_used_bytes": "memory in use, by all processes",
    "gpu/temperature_c": "temperature",
    "gpu/power_w": "power of the board",
}

LEVELS: Mapping[str, str] = {
    "ebpf": "eBPF",
    "attached": "eBPF, from outside",
    "procfs": "/proc, without eBPF",
    "timing": "timing alone",
}
"""Level of a run -> what it was observed by."""

TAKING = "taking batches over"
"""The part of the wait for data that any batch costs the training thread."""

LABELS: Mapping[str, str] = {
    **{phase_metric(phase): text for phase, text in PHASES.items()},
    **WAITS,
    **_MORE,
    **BYTES,
    **CACHE,
    **GPU,
}
"""Metric -> its name for people; an indented one is a part of what stands above it."""

PART_OF: Mapping[str, str] = {"loader/worker_start_stop_ns": "loader/start_stop_ns"}
"""Part of the wait for data -> the part that it is within, in lists in which all others add up."""

_WAIT, _OFF = "loader/wait_ns", "sched/main_offcpu_ns"

WITHIN: Mapping[str, str] = {
    **PART_OF,
    **{
        f"loader/{part}_ns": _WAIT
        for part in ("device", "cpu_wait", "compute", "sleep", "handover", "start_stop")
    },
    "sched/wait_offcpu_ns": _WAIT,
    **{f"sched/{part}_ns": _OFF for part in ("main_iowait", "main_runqueue", "main_stopped")},
    **{f"sched/work_{part}_ns": _OFF for part in ("iowait", "runqueue")},
    **{f"block/{part}_read_bytes": "block/read_bytes" for part in ("data", "library")},
}
"""Metric with an indented name -> the one that it is a part of."""

_ALONE: Mapping[str, str] = {
    "sched/main_iowait_ns": "training thread asleep for a device",
    "sched/main_runqueue_ns": "training thread ready, no CPU free",
    "sched/main_stopped_ns": "training thread stopped",
    "sched/work_iowait_ns": "in the step, asleep for a device",
    "sched/work_runqueue_ns": "in the step, ready, no CPU free",
    "block/data_read_bytes": "data read from block devices",
    "block/library_read_bytes": "libraries read from block devices",
    "gpu/sm_active_ratio": "GPU multiprocessors at work",
    "gpu/sm_clock_mhz": "GPU clock",
    "gpu/throttle_power_ratio": "GPU held down by power",
    "gpu/throttle_thermal_ratio": "GPU held down by heat",
    "gpu/throttle_hardware_ratio": "GPU held down by the hardware",
    "gpu/memory_used_bytes": "GPU memory in use, by all processes",
    "gpu/temperature_c": "GPU temperature",
}
"""Metric -> its name where what it is a part of is not above it, nor the word GPU, if its own says
too little there."""

SHORT: Mapping[str, str] = {
    "gpu/sm_active_ratio": "multiprocessors at work",
    "gpu/tensor_active_ratio": "tensor cores",
    "gpu/dram_active_ratio": "memory",
}
"""Metric -> its name in a sentence that is about nothing else than the GPU."""


def label_among(metric: str, shown: Collection[str]) -> str:
    """The name in a list that has `shown` above it: indented only below what it is a part of."""
    whole = WITHIN.get(metric)
    if whole in shown:
        return label_of(metric)
    return _ALONE.get(metric) or label_of(metric).lstrip()


def label_of(metric: str) -> str:
    """The name for people of any metric; a phase has the one that its user gave it."""
    return LABELS.get(metric) or named_phase(metric) or metric.removeprefix(OWN)
