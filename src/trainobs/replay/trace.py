"""What a replay needs of a run: for each step what the training thread and the loader had to do.

Waiting for a CPU, for the device's turn or for a batch is no input: the replay brings it forth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
BATCH = tuple(f"batch/{name}" for name in (*BATCH_TIMES, *BATCH_MARKS, *BATCH_BYTES))
"""Of the batches of a step: times and bytes added up, begin and end of the last one."""

THREADS = ("sched/thread_cpu_ns", "sched/main_await_ns")
"""CPU time of the other threads, and how long the training thread slept until one was done."""

READ = ("io/data_read_bytes", "io/data_direct_read_bytes")
"""Training data read, and the part of it that passed by the page cache."""

STORAGE = ("io/data_read_ns", "cache/read_stall_ratio", "sched/worker_iowait_ns")
"""Time of all threads in reads of data, the share of it asleep for the device; time asleep for a
device of all threads of workers."""

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
    *THREADS,
    "sched/worker_cpu_ns",
    *READ,
    *STORAGE,
    *BESIDE,
)

FEWEST = 24
"""Steps below which a replay says nothing."""

HANDED_NS = 300_000.0
"""What handing over a batch is taken to need where nobody ever waited for one."""


PACED_STEPS = 8
"""Steps in which a device that lets through so many bytes a second evens out what they wait."""

UNEVEN, EVENED = 0.7, 1.7
"""Of a device that may do so: deviation of single waits, as a share of their mean, at least; and
variance of sums of them, as a share of what it were if each knew nothing of the others, at most.
Under a limit of a control group these were 1 to 5 and 0.35 to 1.63 (9 of 10 runs), on other devices
0.15 and 2 to 5."""

COVERAGE = 0.60
"""Share of the time in question that a cause has to explain before a verdict names it."""

COMPUTES = 0.5
"""Share of the time of making a batch from which on workers compute, more than anything else."""


@dataclass(frozen=True)
class Trace:
    """Consecutive steps of a run; arrays of shape (n,), in ns.

    Attributes:
        cpu: what the training thread computed outside the loader, checkpoints and validation.
        away: how long it slept there.
        queued: how long it waited for a CPU there, on average.
        awaits: the part of `away` in which it waited for another thread of its process.
        checkpoint: time blocked by saving.
        validation: time in validation.
        make_cpu: CPU time of making the batch of the step.
        make_device: time asleep for a device meanwhile.
        make_sleep: time asleep for anything else meanwhile.
        make_queued: time without a CPU meanwhile, on average.
        is_paced: whether the device may let through so many bytes a second and no more.
        others_read: share of `make_sleep` that may be for what other threads read from a device.
        is_first: whether the step is the first of an epoch.
        start: what starting and ending the loader and its workers takes in each epoch.
        other_start: the part of it that is not the workers', as a sampler that makes its order;
            least and most.
        has_new_workers: whether new ones start with each epoch.
        receive: CPU time of the training thread for taking over a batch.
        feed: time from the end of a batch until it can be taken over.
        feed_cpu: CPU time of its worker meanwhile.
        feed_held: the part of `feed` in which the worker computes the next batch, and holds the
            lock of its interpreter, which handing over needs as well.
        workers: worker processes; 0: the training thread makes the batches.
        prefetch: batches that each worker may be ahead.
        cpus: CPUs that the run has, at least.
        most_cpus: CPUs that it has if others give way, which take what it leaves idle.
        side: threads that compute beside the training thread while it does.
        threads: of torch in one operation (`torch.get_num_threads`); 0: unknown.
        concurrency: batches that sleep for the device at the same time, while any does; and for
            anything else.
        handed_bytes: in a batch; NaN if unknown.
        step: measured time of each step.
        reads_directly: whether most of what is read by calls passes by the page cache.
    """

    cpu: Floats
    away: Floats
    queued: float
    awaits: Floats
    checkpoint: Floats
    validation: Floats
    make_cpu: Floats
    make_device: Floats
    make_sleep: Floats
    make_queued: float
    is_first: npt.NDArray[np.bool_]
    start: float
    other_start: tuple[float, float]
    has_new_workers: bool
    receive: float
    feed: float
    feed_cpu: float
    feed_held: float
    workers: int
    prefetch: int
    cpus: float
    most_cpus: float
    side: float
    threads: int
    concurrency: tuple[float, float]
    handed_bytes: float
    step: Floats
    reads_directly: bool = False
    others_read: float = 0.0
    is_paced: bool = False

    def __len__(self) -> int:
        return len(self.step)

    @property
    def settled(self) -> slice:
        """The steps after the first ones, which find queues that the record does not tell of."""
        return slice(min(len(self) // 4, 2 * self.workers * self.prefetch), None)

    @property
    def step_ns(self) -> float:
        """Measured time of a step, after the first ones."""
        return float(self.step[self.settled].mean())


def trace_of(
    columns: Mapping[str, Floats],
    epochs: npt.NDArray[np.int64],
    *,
    workers: int,
    prefetch: int,
    cpus: float,
    most_cpus: float,
    threads: int = 0,
    has_new_workers: bool = False,
) -> Trace | None:
    """The trace of consecutive steps; None where the record tells too little.

    Args:
        columns: metrics of `USED`, and `BATCH`, each of shape (n,); NaN for unknown.
        epochs: of each step.
        workers: of the training loader.
        prefetch: its `prefetch_factor`.
        cpus: that the run has, less what others take.
        most_cpus: that it has.
        threads: of torch in one operation; 0: unknown.
        has_new_workers: whether new ones start with each epoch.
    """
    enough = len(epochs) >= FEWEST and all(_known(columns, name) > 0.9 for name in NEEDED)
    if not enough or any(_known(columns, f"batch/{name}") < 0.9 for name in BATCH_TIMES):
        return None
    made = {name: _whole(columns[f"batch/{name}"]) for name in BATCH_TIMES}
    get = {name: _zeros(columns, name, len(epochs)) for name in USED}
    cpu, off, receive = _of_main(get, made, workers)
    other = get[START] - get[STARTING_WORKERS]
    is_split = _known(columns, STARTING_WORKERS) > 0.9  # not in older runs
    is_first = np.diff(epochs, prepend=epochs[0]) != 0
    side = float(get["sched/thread_cpu_ns"].sum() / max(1.0, cpu.sum()))
    extra = float(np.mean((get["sched/worker_cpu_ns"] - made["compute_ns"])[~is_first]))
    feed = _feed(columns, receive) if workers else 0.0
    away = np.maximum(0.0, off - get["sched/work_runqueue_ns"])
    feed_cpu = min(feed, max(0.0, extra))
    computes = made["compute_ns"].mean() >= COMPUTES * sum(ns.mean() for ns in made.values())
    return Trace(
        cpu=cpu,
        away=away,
        queued=float(get["sched/work_runqueue_ns"].mean()),
        awaits=np.minimum(away, get["sched/main_await_ns"]),
        checkpoint=get[CHECKPOINT],
        validation=get[VALIDATION],
        make_cpu=made["compute_ns"],
        make_device=made["device_ns"],
        make_sleep=made["sleep_ns"],
        make_queued=float(made["cpu_wait_ns"].mean()),
        is_first=is_first,
        start=_in_each(is_first, get[START]),
        other_start=(_in_each(is_first, other) if is_split else 0.0, _in_each(is_first, other)),
        has_new_workers=has_new_workers,
        receive=receive,
        feed=feed,
        feed_cpu=feed_cpu,
        feed_held=max(0.0, feed - feed_cpu - HANDED_NS) if computes else 0.0,
        workers=workers,
        prefetch=prefetch,
        cpus=max(0.1, cpus),
        most_cpus=max(0.1, most_cpus),
        side=side,
        threads=threads,
        concurrency=(
            _concurrency(columns, made["device_ns"]),
            _concurrency(columns, made["sleep_ns"]),
        ),
        handed_bytes=_mean(columns.get("batch/handed_bytes")),
        reads_directly=bool(get[READ[1]].sum() > 0.5 * get[READ[0]].sum()),
        others_read=_others_read(columns, made, workers),
        is_paced=_is_paced(made["device_ns"], get[STEP]),
        step=get[STEP],
    )


def _of_main(
    get: Mapping[str, Floats], made: Mapping[str, Floats], workers: int
) -> tuple[Floats, Floats, float]:
    """What the training thread computed, was off the CPU for, and takes to take over a batch."""
    rare = get[CHECKPOINT] + get[VALIDATION]
    outside = np.maximum(0.0, get[STEP] - get[WAIT] - rare)
    off = np.minimum(outside, get["sched/work_offcpu_ns"])
    if workers:
        waited = get[WAIT] - get["sched/wait_offcpu_ns"] - get[START]
        return outside - off, off, float(np.median(np.maximum(0.0, waited)))
    # The data set. On average: a batch that is fetched ahead is made in the step before its own.
    around = max(0.0, float(np.mean(get[WAIT]) - sum(ns.mean() for ns in made.values())))
    return outside - off + around, off, 0.0


def _others_read(columns: Mapping[str, Floats], made: Mapping[str, Floats], workers: int) -> float:
    slept = float(made["sleep_ns"].mean())
    device = float(made["device_ns"].mean())
    reads = asleep_for_storage((_mean(columns.get(name)) for name in STORAGE), device)
    if not workers:
        reads = max(reads, beside_for_storage(_mean(columns.get(name)) for name in BESIDE))
    # Reads of no known file may be other threads', if makers of batches hardly slept for any.
    requests = _mean(columns.get(REQUESTS)) - 10 * device
    reads = max(reads, requests if requests > 0 else 0.0)
    return min(1.0, reads / slept) if slept else 0.0


def _is_paced(device_ns: Floats, step_ns: Floats) -> bool:
    """Whether who found the device slow finds it fast thereafter, as under a limit by time.

    To overlap reads with other work brings nothing then, nor does a faster step.
    """
    whole = len(device_ns) // PACED_STEPS * PACED_STEPS
    if whole < 4 * PACED_STEPS or device_ns.mean() < 0.1 * step_ns.mean():
        return False
    single = float(device_ns[:whole].var())
    sums = float(device_ns[:whole].reshape(-1, PACED_STEPS).sum(axis=1).var())
    is_uneven = bool(single >= (UNEVEN * device_ns.mean()) ** 2)
    return is_uneven and bool(sums <= EVENED * PACED_STEPS * single)


def asleep_for_storage(storage: Iterable[float], device: float) -> float:
    """How long threads waited for storage, beside what makers of batches are known to have.

    It may be a maker itself: who reads directly from a network sleeps there for no block device.

    Args:
        storage: means of `STORAGE`, NaN for unknown.
        device: how long the makers of batches slept for a device.
    """
    read_ns, stalled, iowait_ns = storage
    found = (read_ns * stalled - device, iowait_ns - device)
    return max((ns for ns in found if ns > 0), default=0.0)


def beside_for_storage(beside: Iterable[float]) -> float:
    """How long threads and processes of the run waited for storage that are no workers.

    Args:
        beside: means of `BESIDE`, NaN for unknown.
    """
    iowait, synced, synced_here, requests = beside
    waited = iowait - float(np.nan_to_num(max(0.0, synced - synced_here)))
    return waited if requests > 0 and waited > 0 else 0.0


def _in_each(is_first: npt.NDArray[np.bool_], times: Floats) -> float:
    """What an epoch has of some times, if any begins."""
    return float(times.sum() / is_first.sum()) if is_first.any() else 0.0


def _known(columns: Mapping[str, Floats], name: str) -> float:
    column = columns.get(name)
    return float(np.isfinite(column).mean()) if column is not None and len(column) else 0.0


def _zeros(columns: Mapping[str, Floats], name: str, length: int) -> Floats:
    column = columns.get(name)
    return np.zeros(length) if column is None else np.nan_to_num(column)


def _whole(column: Floats) -> Floats:
    """A column in which the few unknown values are what is usual."""
    return np.where(np.isfinite(column), column, np.nanmedian(column))


def _mean(column: Floats | None) -> float:
    known = np.isfinite(column) if column is not None else np.zeros(0, np.bool_)
    return float(column[known].mean()) if column is not None and known.any() else float("nan")


def _feed(columns: Mapping[str, Floats], receive: float) -> float:
    """How long a batch is on its way, from steps that waited for one that was being made."""
    begin, end = columns["batch/fetch_begin_ns"], columns["batch/fetch_end_ns"]
    made = columns["batch/end_ns"]
    late = (end - made)[np.isfinite(end) & (made > begin)]
    # Of the shortest: the rest waited for a CPU, too.
    return max(0.0, float(np.percentile(late, 5)) - receive) if len(late) >= 5 else HANDED_NS


def _concurrency(columns: Mapping[str, Floats], asleep_ns: Floats) -> float:
    """Mean number of batches whose makers sleep while any does; at least 1."""
    begin, end = columns["batch/begin_ns"], columns["batch/end_ns"]
    known = np.isfinite(begin) & np.isfinite(end) & (asleep_ns > 0)
    begin, end = begin[known], end[known]
    if not len(begin):
        return 1.0
    share = np.minimum(1.0, asleep_ns[known] / np.maximum(1.0, end - begin))
    edges = np.unique(np.concatenate([begin, end]))
    asleep = any_asleep = 0.0
    for first, last in zip(edges[:-1], edges[1:], strict=True):
        on = share[(begin <= first) & (end >= last)]
        asleep += float(on.sum()) * (last - first)
        any_asleep += float(1 - np.prod(1 - on)) * (last - first)
    return max(1.0, asleep / any_asleep) if any_asleep else 1.0
