"""One step of a run: what it waited for, and who made its batches."""

from __future__ import annotations

from typing import TypedDict, cast

import numpy as np
import numpy.typing as npt

from trainobs.analysis.batches.of_steps import are_for
from trainobs.analysis.batches.unknown import NO_LOADER, NO_STEP, unreadable_of
from trainobs.analysis.batches.workers import MADE
from trainobs.analysis.io.unnamed_reads import unnamed_bytes
from trainobs.core.abi import FileClass, Op, Phase
from trainobs.core.catalogue import named_phase_metric, phase_metric
from trainobs.core.errors import RunLogError
from trainobs.core.records import UNKNOWN
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import STEPS
from trainobs.verdict.metric_names import ANY_STOPPED

LOADER_PARTS = (
    "loader/device_ns",
    "loader/cpu_wait_ns",
    "loader/compute_ns",
    "loader/sleep_ns",
    "loader/handover_ns",
    "loader/start_stop_ns",
    "python/wait_gil_ns",
)
"""Metrics that say why a step waited for its data; the last two are parts of those before them."""

_PHASES = [phase_metric(phase) for phase in (*list(Phase)[2:], Phase.OTHER)]
_METRICS = ("step/duration_ns", ANY_STOPPED, "loader/wait_ns", *LOADER_PARTS, *_PHASES)
_NO_BATCH = "no batch is known to have gone to it, as to others"
_COUNTS = ("number", "read_bytes", "read_count", *MADE, "slowest_ns")
_LITTLE = 0.01
"""Share of the data read, up to which what no batch has may be of batches that nobody took."""


class InStep(TypedDict):
    """A metric in one step, and its median in all; None where unknown."""

    value: float | None
    median: float | None


class BatchOfStep(TypedDict):
    """A batch, and what making it took; None where unknown.

    Attributes:
        worker: None for the training thread.
        ended_ns: after the step began; below 0 for one that was made ahead.
    """

    worker: int | None
    number: int | None
    read_bytes: int | None
    read_count: int | None
    device_ns: int | None
    cpu_wait_ns: int | None
    compute_ns: int | None
    sleep_ns: int | None
    slowest_ns: int | None
    slowest_file: str | None
    made_ns: int | None
    ended_ns: int


class Apart(TypedDict):
    """What was read of data in a run, and is in no batch.

    Attributes:
        is_mapped: whether some was read through mappings, which no batch has.
        apart_bytes: what calls read, as of threads beside a maker (pyarrow's) or its programs.
    """

    is_mapped: bool
    apart_bytes: int


class OneStep(Apart):
    """Where one step went.

    Attributes:
        metrics: by name.
        batches: the one that was finished last first.
        unknown: why there are none, though eBPF observed; else None.
    """

    run: str
    level: str | None
    rank: int
    step: int
    epoch: int
    metrics: dict[str, InStep]
    batches: list[BatchOfStep]
    unknown: str | None


def explain(run: RunLog, step: int) -> OneStep:
    """Where one step of one rank went, and what it took to make its batches.

    Raises:
        RunLogError: there is no such step, or a file is damaged.
    """
    rank = run.rank
    steps = rank.step()
    rows = np.flatnonzero(steps == step)
    if step < 0 or not rows.size:
        raise _no_such_step(run, rank, step)
    metrics = (*_METRICS, *map(named_phase_metric, rank.phases))
    values = rank.metrics(metrics)
    batches = _batches(rank, int(rows[0]))
    if unnamed_bytes(run, rank) is not None:
        for batch in batches:
            batch["read_bytes"] = batch["read_count"] = None
    return {
        "run": str(run.path),
        "level": run.info.get("level"),
        "rank": rank.rank,
        "step": step,
        "epoch": int(rank.epoch()[rows[0]]),
        "metrics": {
            name: {"value": _known(column[rows[0]]), "median": _median(column[steps >= 0])}
            for name, column in values.items()
        },
        "batches": batches,
        "unknown": None if batches else _why_unknown(run, rank),
        **_apart(rank),
    }


def _apart(rank: RankLog) -> Apart:
    cells = rank.cells()[:, FileClass.DATA]
    made = rank.batches("read_bytes")
    read = int(cells["bytes"][[Op.READ, Op.URING_READ]].sum())
    apart = read - int(made[made != UNKNOWN].sum())
    return {
        "is_mapped": bool(cells["count"][[Op.MMAP, Op.FAULT, Op.FAULT_FILL]].any()),
        "apart_bytes": apart if apart > _LITTLE * read else 0,
    }


def _no_such_step(run: RunLog, rank: RankLog, step: int) -> RunLogError:
    steps = rank.step()
    steps = steps[steps >= 0]
    there = f"steps {steps.min()} to {steps.max()}, {steps.size} of them" if steps.size else "none"
    there += f", in {run.path}"
    do = f"give one from {steps.min()} to {steps.max()}" if steps.size else "leave --step out"
    if unreadable := rank.files.unreadable(STEPS):
        file, why = next(iter(unreadable.items()))
        there += f"; unreadable files: {file.name}: {why}"
        do = "copy them anew from where the run was written" + (f", or {do}" if steps.size else "")
    return RunLogError(
        failed=f"There is no step {step} in the record of rank {rank.rank}.", found=there, do=do
    )


def _why_unknown(run: RunLog, rank: RankLog) -> str | None:
    if run.info.get("level") != "ebpf":
        return None
    if lacking := unreadable_of(run):
        file, why = next(iter(lacking.items()))
        return f"{file}: {why}"
    if not run.info.get("loaders"):
        return NO_LOADER
    return _NO_BATCH if (rank.batches("for_step") != UNKNOWN).any() else NO_STEP


def _batches(rank: RankLog, row: int) -> list[BatchOfStep]:
    rows, starts_ns = slice(row, row + 1), rank.start_ns()
    asked, start_ns = rank.batches("fetch_begin_ns"), starts_ns[row]
    is_own = are_for(rows, rank.step(), starts_ns, rank.batches("for_step"), asked)
    own = np.flatnonzero(is_own)
    worker, begin, end = (rank.batches(name) for name in ("worker", "begin_ns", "end_ns"))
    counts = {name: rank.batches(name) for name in _COUNTS}
    found = [
        {
            "worker": _count(worker[at]),
            **{name: _count(column[at]) for name, column in counts.items()},
            "slowest_file": rank.slowest_file(at),
            "made_ns": int(end[at] - begin[at]) if begin[at] <= end[at] else None,
            "ended_ns": int(end[at] - start_ns),
        }
        for at in own[np.argsort(-end[own])].tolist()
    ]
    return cast("list[BatchOfStep]", found)


def _count(value: np.int64) -> int | None:
    return None if value == UNKNOWN else int(value)


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _median(values: npt.NDArray[np.float64]) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else None
