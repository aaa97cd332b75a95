"""What a replay needs of a run: for each step what the training thread and the loader had to do.

Waiting for a CPU, for the device's turn or for a batch is no input: the replay brings it forth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trainobs.replay.by_batch import by_batch, counts_of
from trainobs.replay.handover import NO_DRAW, NOTHING, Draw, Handover, handover_of
from trainobs.replay.metric_columns import (
    BATCH_TIMES,
    CHECKPOINT,
    COUNT,
    NEEDED,
    READ,
    START,
    STARTING_WORKERS,
    STEP,
    USED,
    VALIDATION,
    WAIT,
    Floats,
    known,
    mean,
)
from trainobs.replay.storage import is_paced, may_be_paced, others_read

UNKNOWN_BATCH: Mapping[str, float] = {}

FEWEST = 24
"""Steps below which a replay says nothing."""

COVERAGE = 0.60
"""Share of the time in question that a cause has to explain before a verdict names it."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """What is known of a run beside its steps.

    Attributes:
        workers: worker processes; 0: the training thread makes the batches.
        prefetch: batches that each worker may be ahead.
        cpus: CPUs that the run has, at least.
        most_cpus: CPUs that it has if others give way, which take what it leaves idle.
        threads: of torch in one operation (`torch.get_num_threads`); 0: unknown.
        tensors: in a batch; 0: unknown.
        draw: what the sampler takes of the training thread for a batch.
        has_new_workers: whether new ones start with each epoch.
        tells_opening: whether a first batch that takes longer can be told to be for that: the data
            set is not told where an epoch begins, and the order is another in each.
    """

    workers: int
    prefetch: int
    cpus: float
    most_cpus: float
    threads: int = 0
    tensors: int = 0
    draw: Draw = NO_DRAW
    has_new_workers: bool = False
    tells_opening: bool = False


@dataclass(frozen=True, kw_only=True)
class Trace(Given):
    """Consecutive steps of a run; arrays of shape (n,), in ns.

    Of steps that get several batches these are of batches, each with its part of the step.

    Attributes:
        batches: that a step gets, on average.
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
        may_be_paced: the same where nobody reads ahead, and it is not known.
        others_read: share of `make_sleep` that may be for what other threads read from a device.
        is_first: whether the step is the first of an epoch.
        start: what starting and ending the loader and its workers takes in each epoch.
        other_start: the part of it that is not the workers', as a sampler that makes its order;
            least and most.
        opening: what making the first batch of the run took beyond others: CPU time, and sleep.
        hand: how a batch is handed over.
        side: threads that compute beside the training thread while it does.
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
    hand: Handover
    side: float
    concurrency: tuple[float, float]
    handed_bytes: float
    step: Floats
    reads_directly: bool = False
    opening: tuple[float, float] = (0.0, 0.0)
    others_read: float = 0.0
    is_paced: bool = False
    may_be_paced: bool = False
    batches: float = 1.0

    def __len__(self) -> int:
        return len(self.step)

    @property
    def settled(self) -> slice:
        """The steps after the first ones, which find queues that the record does not tell of."""
        return slice(min(len(self) // 4, 2 * self.workers * self.prefetch), None)

    @property
    def step_ns(self) -> float:
        """Measured time of a step, with all its batches, after the first ones."""
        return self.batches * float(self.step[self.settled].mean())


def trace_of(
    columns: Mapping[str, Floats],
    epochs: npt.NDArray[np.int64],
    given: Given,
    first_batch: Mapping[str, float] = UNKNOWN_BATCH,
) -> Trace | None:
    """The trace of consecutive steps; None where the record tells too little.

    Args:
        columns: metrics of `USED`, and `BATCH`, each of shape (n,); NaN for unknown.
        epochs: of each step.
        given: what is known beside them.
        first_batch: of the run, which is not among the steps: name of `BATCH` -> ns.
    """
    enough = len(epochs) >= FEWEST and all(known(columns, name) > 0.9 for name in NEEDED)
    if not enough or any(known(columns, f"batch/{name}") < 0.9 for name in BATCH_TIMES):
        return None
    workers, draw = given.workers, given.draw
    counts, opening = counts_of(columns, len(epochs)), _opening(first_batch, columns, workers)
    are_single, (paced, uncertain) = bool((counts == 1).all()), _limits(columns, workers)
    columns = by_batch(columns, counts, _begins(epochs), workers)
    epochs = np.repeat(epochs, counts)
    made = {name: _whole(columns[f"batch/{name}"]) for name in BATCH_TIMES}
    get = {name: _zeros(columns, name, len(epochs)) for name in USED}
    made = made if workers else _without_draw(made, draw)
    cpu, off = _of_main(get, made, draw, workers)
    is_first = _begins(epochs)
    side = float(get["sched/thread_cpu_ns"].sum() / max(1.0, cpu.sum()))
    away = np.maximum(0.0, off - get["sched/work_runqueue_ns"])
    given = replace(
        given,
        cpus=max(0.1, given.cpus),
        most_cpus=max(0.1, given.most_cpus),
        tells_opening=given.has_new_workers and given.tells_opening and are_single,
    )
    return Trace(
        **vars(given),
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
        other_start=_other_start(columns, get, is_first),
        opening=opening,
        hand=handover_of(columns, get, made, draw, given.tensors, ~is_first)
        if workers
        else NOTHING,
        side=side,
        concurrency=_concurrencies(columns, made, workers, are_single),
        handed_bytes=mean(columns.get("batch/handed_bytes")),
        reads_directly=bool(get[READ[1]].sum() > 0.5 * get[READ[0]].sum()),
        others_read=others_read(columns, made, workers),
        is_paced=paced,
        may_be_paced=uncertain,
        batches=float(counts.mean()),
        step=get[STEP],
    )


def _begins(epochs: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether each is the first of an epoch, but for the first of all."""
    begins: npt.NDArray[np.bool_] = np.diff(epochs, prepend=epochs[0]) != 0
    return begins


def _opening(
    first_batch: Mapping[str, float], columns: Mapping[str, Floats], workers: int
) -> tuple[float, float]:
    """What the first batch took beyond what is usual; nothing where nobody knows.

    Where a step gets several, those of several workers did.
    """
    makers = max(1.0, min(workers, first_batch.get(COUNT, 1.0)))
    cpu, sleep = (
        max(0.0, first_batch.get(name, 0.0) - float(np.nanmedian(columns[name]))) / makers
        for name in ("batch/compute_ns", "batch/sleep_ns")
    )
    return cpu, sleep


def _without_draw(made: Mapping[str, Floats], draw: Draw) -> dict[str, Floats]:
    """What the training thread takes to make a batch, beside the sampler, which it asks first."""
    return {
        **made,
        "compute_ns": np.maximum(0.0, made["compute_ns"] - draw.cpu),
        "sleep_ns": np.maximum(0.0, made["sleep_ns"] - draw.away),
    }


def _of_main(
    get: Mapping[str, Floats], made: Mapping[str, Floats], draw: Draw, workers: int
) -> tuple[Floats, Floats]:
    """What the training thread computed, and was off the CPU for."""
    rare = get[CHECKPOINT] + get[VALIDATION]
    outside = np.maximum(0.0, get[STEP] - get[WAIT] - rare)
    off = np.minimum(outside, get["sched/work_offcpu_ns"])
    if workers:
        return outside - off, off
    # The data set. On average: a batch that is fetched ahead is made in the step before its own.
    whole = sum(ns.mean() for ns in made.values()) + draw.cpu + draw.away
    around = max(0.0, float(np.mean(get[WAIT]) - whole))
    return outside - off + around, off


def _other_start(
    columns: Mapping[str, Floats], get: Mapping[str, Floats], is_first: npt.NDArray[np.bool_]
) -> tuple[float, float]:
    """What starts and ends of a loader take that are not its workers', least and most."""
    other = _in_each(is_first, get[START] - get[STARTING_WORKERS])
    is_split = known(columns, STARTING_WORKERS) > 0.9  # not in older runs
    return other if is_split else 0.0, other


def _in_each(is_first: npt.NDArray[np.bool_], times: Floats) -> float:
    """What an epoch has of some times, if any begins."""
    return float(times.sum() / is_first.sum()) if is_first.any() else 0.0


def _zeros(columns: Mapping[str, Floats], name: str, length: int) -> Floats:
    column = columns.get(name)
    return np.zeros(length) if column is None else np.nan_to_num(column)


def _limits(columns: Mapping[str, Floats], workers: int) -> tuple[bool, bool]:
    """Whether the device has a limit in bytes a second, and whether it may have one."""
    device, step = _whole(columns["batch/device_ns"]), _whole(columns[STEP])
    paced = is_paced(device, step)
    return paced, not (workers or paced) and may_be_paced(device, step)


def _whole(column: Floats) -> Floats:
    """A column in which the few unknown values are what is usual."""
    return np.where(np.isfinite(column), column, np.nanmedian(column))


def _concurrencies(
    columns: Mapping[str, Floats], made: Mapping[str, Floats], workers: int, are_single: bool
) -> tuple[float, float]:
    """Of makers that sleep for the device, and for anything else."""
    device, sleep = (
        _concurrency(columns, made[name], workers, are_single) for name in ("device_ns", "sleep_ns")
    )
    return device, sleep


def _concurrency(
    columns: Mapping[str, Floats], asleep_ns: Floats, workers: int, are_single: bool
) -> float:
    """Mean number of batches whose makers sleep while any does; at least 1.

    Of steps with several batches it is known when the last was made. There workers are taken to
    sleep whatever the others do.
    """
    if not are_single:
        each = float(asleep_ns.sum() / columns[STEP].sum()) / max(1, workers)
        any_asleep = 1.0 - (1.0 - min(1.0, each)) ** workers
        return max(1.0, workers * each / any_asleep) if any_asleep else 1.0
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
