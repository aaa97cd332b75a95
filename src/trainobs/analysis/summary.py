"""A run log as one dictionary of numbers: what `trainobs report --json` prints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from trainobs.analysis.batches.workers import (
    OF_A_BATCH,
    WAITED,
    Loader,
    Worker,
    at_once,
    got,
    of_no_step,
    together,
    workers,
)
from trainobs.analysis.checkpoints import CHECKPOINTS, Checkpoint, checkpoints
from trainobs.analysis.io.data_reads import has_libaio, mapped_data
from trainobs.analysis.io.files import FilesRead, files_read
from trainobs.analysis.io.unnamed_reads import OF_DATA, data_is_named, unnamed_bytes
from trainobs.analysis.losses import Lost, lost
from trainobs.analysis.metric_statistics import MetricStatistics, Statistics, unknown
from trainobs.analysis.own_cost import own_cpu_ratio, training_ns
from trainobs.analysis.ranks.side_by_side import COMPARED, Compared, compare
from trainobs.analysis.step_time import NewestStep, StepTime, newest_step, step_time
from trainobs.analysis.stored import lacking
from trainobs.analysis.tables.hot_rows import HotRows, hot_rows
from trainobs.analysis.tables.lookups import TableLookups
from trainobs.analysis.tables.of_run import Embeddings, embeddings
from trainobs.analysis.verdicts import AllSteps
from trainobs.analysis.would_help import JudgedRun, judged
from trainobs.core.abi import FileClass
from trainobs.core.catalogue import CATALOGUE, METRICS, STEP_METRICS
from trainobs.core.catalogue.hot_rows import SHARES
from trainobs.core.catalogue.named import metric_of_phase
from trainobs.core.catalogue.own_counters import metrics_of_counter
from trainobs.core.cells import StepCells
from trainobs.core.histogram import BLOCK_READ, EDGES_NS, LATENCIES, Latency, percentile
from trainobs.core.metrics import MetricKind, evaluate
from trainobs.core.records import SETUP
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import BATCHES, EMBEDDINGS, KERNEL, STEPS
from trainobs.verdict.facts import facts_from
from trainobs.verdict.metric_names import BATCH_NEEDED, LOADER, LOADER_DEVICE, STEP


class Distribution(TypedDict):
    """A latency of the whole run, in ns: its count, percentiles, and what fell into each bucket."""

    title: str
    count: int
    p50_ns: float
    p95_ns: float
    p99_ns: float
    buckets: list[LatencyBucket]


class LatencyBucket(TypedDict):
    """How many were from so long to so long, ns."""

    from_ns: int
    to_ns: int
    count: int


class Counted(TypedDict):
    """A sum of a program of the user's: see `OwnCounter`; `name` is that of its metric."""

    name: str
    title: str
    unit: str
    probe: str


class About(TypedDict):
    """What a run is, by its `run.json`; None where that does not tell.

    Attributes:
        run: its directory.
        attached: of a run observed from outside `pid`, `user`, `command`, `steps`, which says what
            a step is, and `events_per_step`; else None.
        steps_are: what a step is, in words; None where a framework says so.
        no_step: why there is none, in words, where the run says so.
        has_curves: whether curves for TensorBoard are in it; a framework may have them elsewhere.
    """

    run: str
    trainobs: str
    rank: int
    world_size: int | None
    level: str | None
    attached: dict[str, Any] | None
    steps_are: str | None
    no_step: str | None
    host: dict[str, Any]
    capabilities: dict[str, str]
    gpu: dict[str, Any]
    outcome: str | None
    has_curves: bool


class Summary(About, JudgedRun, Compared):
    """One rank of a run in numbers, and the step time of all of its ranks; None where unknown.

    Attributes:
        is_part: whether these are only the newest steps.
        step: the verdict's shares are shares of its mean.
        training_ns, own_cpu_ratio: see `analysis.own_cost`.
        metrics: by name; those of a table as `<metric>{table=<table>}`, those of an own program's
            roles as `<name>{role=<role>}`. The mean of a ratio is formed from the kernel cells of
            the whole run; that of a quantile is that quantile of all the run's events.
        setup: what the sums contain from before the first step, where that is not zero.
        workers, loader: the makers of batches, each, and as one.
        latency: by name.
        io: None for a run that was not to count files.
        unnamed_bytes, data_is_named: see `analysis.io.unnamed_reads`.
        mapped_data, has_libaio: see `analysis.io.data_reads`.
        own: what programs of the user's counted.
    """

    steps: int
    is_part: bool
    epochs: int
    step: StepTime | None
    training_ns: float
    own_cpu_ratio: float | None
    newest: NewestStep | None
    metrics: dict[str, Statistics]
    setup: dict[str, int]
    checkpoints: list[Checkpoint]
    workers: list[Worker]
    loader: Loader | None
    embeddings: Embeddings | None
    hot_rows: HotRows | None
    latency: dict[str, Distribution | None]
    io: FilesRead | None
    unnamed_bytes: int | None
    data_is_named: bool
    mapped_data: str | None
    has_libaio: bool
    own: list[Counted]
    lost: Lost


def summarize(run: RunLog) -> Summary:
    """Every metric of one rank of a run, and the step time of all of its ranks.

    Returns:
        What `json.dumps` takes as it is.

    Raises:
        RunLogError: a file is damaged.
    """
    run.rank.cells()  # first, so that files of cells are looked at as they are read
    with run.rank.keeping(STEPS, _OFTEN):
        return _summary(run, run.rank)


_OFTEN = tuple(
    dict.fromkeys(
        ("step", "epoch", "start_ns", STEP, LOADER, LOADER_DEVICE, *CHECKPOINTS, *WAITED, *COMPARED)
    )
)
"""Columns that several parts of a summary need."""


def _summary(run: RunLog, rank: RankLog) -> Summary:
    with rank.keeping(BATCHES, {*BATCH_NEEDED, *OF_A_BATCH}):
        are_whole = not lacking(run, rank, BATCHES)
        taken = AllSteps(rank, is_part=run.is_part, batches_are_whole=are_whole)
        makers, others, of_steps = workers(rank), of_no_step(rank), got(rank)
        several = at_once(rank)
    if not are_whole and sum(one["batches"] for one in makers) > (of_steps or math.inf):
        makers = []  # some are there twice, or another run's
    metrics, setup, buckets = _metrics(run, rank, taken)
    steps, all_ns = taken.steps, training_ns(metrics, setup)
    facts, in_step = facts_from(run.info), rank.step() != SETUP
    are_all = not lacking(run, rank, EMBEDDINGS)
    lookups = TableLookups(rank, is_part=run.is_part, are_whole=are_all)
    metrics |= lookups.metrics()
    about_tables = embeddings(run, rank, lookups)  # before what is lost is told
    skew = about_tables["skew"] if about_tables else None
    mapped, unnamed = mapped_data(metrics), unnamed_bytes(run, rank)
    latencies = {one.name: _distribution(one, buckets) for one in LATENCIES}
    if unnamed is not None:
        latencies |= {one.name: None for one in LATENCIES if one.file_class is FileClass.DATA}
        setup = {name: total for name, total in setup.items() if name not in OF_DATA}
        metrics |= {name: unknown(metrics[name]["unit"]) for name in OF_DATA}
    return {
        **_facts(run, rank),
        "steps": int(in_step.sum()),
        "is_part": run.is_part,
        "epochs": len(np.unique(rank.epoch()[in_step])),
        "step": step_time(rank, steps.run, facts),
        "training_ns": all_ns,
        "own_cpu_ratio": own_cpu_ratio(metrics, all_ns),
        "newest": newest_step(rank, run.info),
        **judged(run, steps),
        "metrics": metrics,
        "setup": setup,
        "checkpoints": checkpoints(rank),
        "workers": makers,
        "loader": together(
            makers, others, facts, workers_at_once=several, got=of_steps, are_whole=are_whole
        ),
        "embeddings": about_tables,
        "hot_rows": hot_rows(rank, skew) if _HOT_ROWS in _probes(run) else None,
        "latency": latencies,
        "io": files_read(run, rank, unnamed),
        "unnamed_bytes": unnamed,
        "data_is_named": data_is_named(run),
        "mapped_data": mapped,
        "has_libaio": has_libaio(rank),
        "own": [
            {"name": one.name, "title": one.title, "unit": one.unit, "probe": one.probe}
            for one in rank.counters
        ],
        "lost": lost(run, rank, metrics),
        **compare(run.ranks, run.info.get("world_size", 1), rank.rank),
    }


_HOT_ROWS = "hot_rows"


def _probes(run: RunLog) -> Mapping[str, str]:
    found: Mapping[str, str] = run.info.get("capabilities", {})
    return found


def _metrics(
    run: RunLog, rank: RankLog, taken: AllSteps
) -> tuple[dict[str, Statistics], dict[str, int], npt.NDArray[np.uint64]]:
    """Metrics of steps by name, sums of what came before the first step, and latencies.

    The table of steps is read once, and `taken` takes its steps meanwhile.
    """
    known = STEP_METRICS if _HOT_ROWS in _probes(run) else CATALOGUE
    own = chain.from_iterable(map(metrics_of_counter, rank.counters))
    statistics = MetricStatistics([*known, *map(metric_of_phase, rank.phases), *own])
    training, row = rank.step() != SETUP, 0
    for part in rank.parts(STEPS, (*statistics.names, *METRICS, *taken.names)):
        taken.take(part)
        statistics.take(part, training[row : (row := row + len(part[STEP]))])
    metrics, setup = statistics.told()
    buckets = rank.latency()
    _form_from_sums(metrics, cells_of(rank, [SETUP]), buckets)
    _form_shares(metrics)
    return metrics, setup, buckets


def _facts(run: RunLog, rank: RankLog) -> About:
    ended, settings = run.info.get("summary"), run.info.get("settings", {})
    return {
        "run": str(run.path),
        "trainobs": run.info["trainobs"],
        "rank": rank.rank,
        "world_size": run.info.get("world_size"),
        "level": run.info.get("level"),
        "attached": settings.get("attached"),
        "steps_are": settings.get("steps"),
        "no_step": settings.get("no_step"),
        "host": run.info.get("host", {}),
        "capabilities": run.info.get("capabilities", {}),
        "gpu": run.info.get("gpu", {}),
        "outcome": ended.get("outcome") if ended else None,
        "has_curves": any((run.path / "tensorboard").glob("*tfevents*")),
    }


def mean_of(summary: Summary, name: str) -> float | None:
    """The mean of a metric; None where it is unknown, or no metric of the run."""
    found = summary["metrics"].get(name)
    return found["mean"] if found else None


def cells_of(rank: RankLog, but: Sequence[int] = ()) -> StepCells | None:
    """Cells of a run without some steps, as one step; None if any are missing."""
    cells = rank.cells(but)
    are_missing = rank.files.unreadable(KERNEL) or not rank.files[KERNEL]
    return None if are_missing else StepCells.from_rows(cells[None])


def _form_from_sums(
    metrics: dict[str, Statistics], cells: StepCells | None, buckets: npt.NDArray[np.uint64]
) -> None:
    """Replace means of ratios and quantiles, in which an idle step would weigh like a busy one."""
    merged = BLOCK_READ.total(buckets)
    for metric in CATALOGUE:
        measured = metrics[metric.name]["mean"] is not None
        if metric.kind is MetricKind.RATIO and measured and metric.formula:
            mean = math.nan if cells is None else float(evaluate(metric, cells)[0])
            metrics[metric.name]["mean"] = None if math.isnan(mean) else mean
        if metric.kind is MetricKind.QUANTILE and measured and merged.any():
            metrics[metric.name]["mean"] = float(percentile(merged, 0.99))


def _form_shares(metrics: dict[str, Statistics]) -> None:
    """Likewise of ratios of other metrics."""
    for name, quotient in SHARES.items():
        if name in metrics and metrics[name]["mean"] is not None:
            part, whole = (float(metrics[of]["sum"] or 0) for of in (quotient.part, quotient.whole))
            metrics[name]["mean"] = float(quotient.of(part, whole))


def _distribution(latency: Latency, buckets: npt.NDArray[np.uint64]) -> Distribution | None:
    counts = latency.total(buckets)
    if not counts.any():
        return None
    return {
        "title": latency.title,
        "count": int(counts.sum()),
        "p50_ns": float(percentile(counts, 0.50)),
        "p95_ns": float(percentile(counts, 0.95)),
        "p99_ns": float(percentile(counts, 0.99)),
        "buckets": [
            {"from_ns": int(EDGES_NS[b]), "to_ns": int(EDGES_NS[b + 1]), "count": int(counts[b])}
            for b in np.flatnonzero(counts)
        ],
    }
