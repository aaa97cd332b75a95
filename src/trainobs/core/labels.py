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
    "sched/main_iowait_ns": "  asleep for a block device",
    "sched/main_runqueue_ns": "  ready to run, no CPU free",
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
    "loader/sleep_ns": "  loader asleep, cause unknown",
    "loader/handover_ns": "  batches made, not yet received",
    "loader/start_stop_ns": "  loaders starting and ending",
    "loader/worker_start_stop_ns": "    workers, at least",
    "sched/wait_offcpu_ns": "  asleep, or no CPU, while it waits",
    "sched/work_runqueue_ns": "  ready to run in the step, no CPU",
    "sched/work_iowait_ns": "  asleep for a device in the step",
    "sched/thread_iowait_ns": "other threads asleep for a device",
    "sched/thread_runqueue_ns": "other threads ready to run, no CPU",
    "sched/thread_cpu_ns": "CPU time of other threads",
    "sched/worker_cpu_ns": "CPU time of loader workers",
    "sched/child_cpu_ns": "CPU time of other child processes",
    "sched/others_cpu_ratio": "CPU taken by other processes",
    "sched/transfer_sleep_ns": "asleep in transfer, cause unknown",
    "sched/forward_sleep_ns": "asleep in forward, cause unknown",
    "sched/backward_sleep_ns": "asleep in backward, cause unknown",
    "sched/optimizer_sleep_ns": "asleep in optimizer, cause unknown",
    "sched/other_sleep_ns": "asleep in other code, cause unknown",
    "python/gc_ns": "Python's garbage collector",
    "ranks/wait_ns": "waiting in collectives",
    "memory/major_fault_count": "page faults that read from a device",
    "memory/refault_count": "pages read again for want of memory",
    "net/sent_bytes": "sent over the network",
    "net/received_bytes": "received over the network",
}

LEVELS: Mapping[str, str] = {
    "ebpf": "eBPF",
    "attached": "eBPF, from outside",
    "procfs": "/proc, without eBPF",
    "timing": "timing alone",
}
"""Level of a run -> what it was observed by; the page has the same words."""

TAKING = "taking batches over"
"""The part of the wait for data that any batch costs the training thread."""

LABELS: Mapping[str, str] = {
    **{phase_metric(phase): text for phase, text in PHASES.items()},
    **WAITS,
    **_MORE,
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
    **{f"sched/{part}_ns": _OFF for part in ("main_iowait", "main_runqueue")},
    **{f"sched/work_{part}_ns": _OFF for part in ("iowait", "runqueue")},
}
"""Metric with an indented name -> the one that it is a part of."""

_ALONE: Mapping[str, str] = {
    "sched/main_iowait_ns": "training thread asleep for a device",
    "sched/main_runqueue_ns": "training thread ready, no CPU free",
    "sched/work_iowait_ns": "in the step, asleep for a device",
    "sched/work_runqueue_ns": "in the step, ready, no CPU free",
}
"""The same -> its name where that is not above it, if its own says too little there."""


def label_among(metric: str, shown: Collection[str]) -> str:
    """The name in a list that has `shown` above it: indented only below what it is a part of."""
    whole = WITHIN.get(metric)
    if whole in shown:
        return label_of(metric)
    return _ALONE.get(metric) or label_of(metric).lstrip()


def label_of(metric: str) -> str:
    """The name for people of any metric; a phase has the one that its user gave it."""
    return LABELS.get(metric) or named_phase(metric) or metric.removeprefix(OWN)
