"""The metrics that verdicts look at, by name."""

from __future__ import annotations

from trainobs.replay.metric_columns import BATCH, BATCH_BYTES, BATCH_MARKS, BATCH_TIMES, USED
from trainobs.verdict import kept

STEP = "step/duration_ns"
LOADER = "loader/wait_ns"
TRANSFER = "phase/transfer_ns"
OPTIMIZER = "phase/optimizer_ns"
COMPUTE = ("phase/forward_ns", "phase/backward_ns", OPTIMIZER)
CHECKPOINT = "phase/checkpoint_ns"
VALIDATION = "phase/validation_ns"
LOGGING = "phase/logging_ns"
OTHER = "phase/other_ns"
NAMED = "phase/*_ns"
"""All phases with a name of the user's together; what no single one can be called."""
PHASES = (LOADER, TRANSFER, *COMPUTE, CHECKPOINT, VALIDATION, LOGGING, NAMED, OTHER)
GARBAGE = "python/gc_ns"
INTERPRETER = "python/gil_wait_ns"
WAITED_FOR_GIL = "python/wait_gil_ns"
OWN_CPU = "obs/cpu_ns"
WAITED_OFF_CPU = "sched/wait_offcpu_ns"
"""Of the wait for data, that in which the training thread did not take batches over."""
AWAITED = "sched/main_await_ns"
"""Sleep of the training thread until another thread of its process was done."""
START = "loader/start_stop_ns"
STARTING_WORKERS = "loader/worker_start_stop_ns"
LOADER_DEVICE = "loader/device_ns"
LOADER_CPU_WAIT = "loader/cpu_wait_ns"
LOADER_COMPUTE = "loader/compute_ns"
LOADER_SLEEP = "loader/sleep_ns"
HANDOVER = "loader/handover_ns"
"""What is left of the wait for data; `START`, and what is taken over, are within it."""
SPLIT = (LOADER_DEVICE, LOADER_CPU_WAIT, LOADER_COMPUTE, LOADER_SLEEP, HANDOVER)
"""The parts of the wait for data, which add up to it."""
OTHER_SLEEP = "sched/other_sleep_ns"
SLEEPS = (
    "sched/transfer_sleep_ns",
    "sched/forward_sleep_ns",
    "sched/backward_sleep_ns",
    "sched/optimizer_sleep_ns",
    OTHER_SLEEP,
)
STOPPED = "sched/work_stopped_ns"
"""The part of `SLEEPS` in which the training thread was stopped."""
ANY_STOPPED = "sched/main_stopped_ns"
"""The same wherever it was: also in the wait for data, checkpoints and validation."""
FROZEN = "sched/frozen_ns"

ON_GPU = ("gpu/transfer_ns", "gpu/forward_ns", "gpu/backward_ns", "gpu/optimizer_ns")
"""From the begin of a phase's work on the GPU to its end there."""

BROUGHT = ("cache/fault_fill_bytes", "cache/hint_bytes", "io/data_direct_read_bytes")
"""Training data that came from storage, beside what read calls brought into the page cache."""

LOADERS = "batch/loaders"
"""How many loaders gave the batches of a step."""

INPUTS = tuple(
    dict.fromkeys(
        (
            STEP,
            *PHASES,
            GARBAGE,
            INTERPRETER,
            WAITED_FOR_GIL,
            OWN_CPU,
            START,
            *SPLIT,
            *SLEEPS,
            STOPPED,
            ANY_STOPPED,
            FROZEN,
            *USED,
            "sched/main_offcpu_ns",
            "sched/main_iowait_ns",
            "sched/main_runqueue_ns",
            "sched/wait_runqueue_ns",
            "sched/work_iowait_ns",
            "sched/thread_runqueue_ns",
            "sched/worker_iowait_ns",
            "sched/worker_runqueue_ns",
            "sched/child_cpu_ns",
            "sched/throttled_ns",
            "sched/others_cpu_ratio",
            "io/data_read_ns",
            "io/checkpoint_write_ns",
            "io/fsync_ns",
            "io/main_fsync_ns",
            "io/checkpoint_fsync_ns",
            "cache/miss_bytes",
            *BROUGHT,
            "block/read_bytes",
            "block/read_count",
            "memory/major_fault_count",
            "memory/refault_count",
            "memory/high_count",
            "memory/stalled_ns",
            "memory/worker_rss_bytes",
            "memory/reclaim_ns",
            "memory/main_reclaim_ns",
            "net/sent_bytes",
            "net/received_bytes",
            "ranks/wait_ns",
            *ON_GPU,
            *BATCH,
            *kept.COLUMNS,
            LOADERS,
        )
    )
)
"""Metrics, and what is known of batches; any of them may be missing."""

BATCH_NEEDED = ("for_step", "loader", "worker", *BATCH_TIMES, *BATCH_BYTES, *BATCH_MARKS)
"""Columns of the table `batches` that are looked at."""
