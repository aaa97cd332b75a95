"""The metrics of steps that a replay looks at, by name; and what is known of a column of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

STEP = "step/duration_ns"
WAIT = "loader/wait_ns"
START = "loader/start_stop_ns"
STARTING_WORKERS = "loader/worker_start_stop_ns"
CHECKPOINT = "phase/checkpoint_ns"
VALIDATION = "phase/validation_ns"
NEEDED = (STEP, WAIT, "sched/wait_offcpu_ns", "sched/work_offcpu_ns", "sched/work_runqueue_ns")

BATCH_TIMES = ("compute_ns", "device_ns", "sleep_ns", "cpu_wait_ns")
BATCH_MARKS = ("begin_ns", "end_ns", "fetch_begin_ns", "fetch_end_ns")
BATCH_BYTES = ("received_bytes", "handed_bytes")
COUNT = "batch/count"
"""How many batches a step got: several, where it accumulates their gradients."""

BATCH = (COUNT, *(f"batch/{name}" for name in (*BATCH_TIMES, *BATCH_MARKS, *BATCH_BYTES)))
"""Of the batches of a step: times and bytes added up, begin and end of the last one."""

KEPT = "batch/kept_ns"
"""Of the waits for finished batches, the time in which their workers made others."""

THREADS = ("sched/thread_cpu_ns", "sched/main_await_ns")
"""CPU time of the other threads, and how long the training thread slept until one was done."""

READ = ("io/data_read_bytes", "io/data_direct_read_bytes")
"""Training data read, and the part of it that passed by the page cache."""

STORAGE = ("io/data_read_ns", "cache/read_stall_ratio", "sched/worker_iowait_ns")
"""Time of all threads in reads of data, the share of it asleep; time asleep for a device of all
threads of workers."""

BESIDE = ("sched/thread_iowait_ns", "io/fsync_ns", "io/main_fsync_ns", "block/read_ns")
"""Time asleep for a device of all that are neither workers nor the training thread; time in fsync,
and of that the training thread's; time of block requests that read."""

REQUESTS = "block/read_ns"
"""Time of block requests that read: also of read-ahead, for which nobody sleeps."""

USED = (
    *NEEDED,
    START,
    STARTING_WORKERS,
    CHECKPOINT,
    VALIDATION,
    "sched/wait_runqueue_ns",
    KEPT,
    *THREADS,
    "sched/worker_cpu_ns",
    *READ,
    *STORAGE,
    *BESIDE,
)


def known(columns: Mapping[str, Floats], name: str) -> float:
    """Share of a column that is known; 0 without one."""
    column = columns.get(name)
    return float(np.isfinite(column).mean()) if column is not None and len(column) else 0.0


def mean(column: Floats | None) -> float:
    """Mean of what is known; NaN for nothing."""
    is_known = np.isfinite(column) if column is not None else np.zeros(0, np.bool_)
    return float(column[is_known].mean()) if column is not None and is_known.any() else float("nan")
