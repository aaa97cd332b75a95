"""A run log as one dictionary of numbers: what `trainobs report --json` prints."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainobs.analysis.checkpoints import CHECKPOINTS, checkpoints
from trainobs.analysis.data_reads import has_libaio, mapped_data
from trainobs.analysis.hot_rows import hot_rows
from trainobs.analysis.io_numbers import files_read
from trainobs.analysis.loader_workers import (
    OF_A_BATCH,
    WAITED,
    got,
    of_no_step,
    together,
    workers,
)
from trainobs.analysis.metric_statistics import MetricStatistics, Statistics
from trainobs.analysis.own_cost import own_cpu_ratio, training_ns
from trainobs.analysis.ranks import COMPARED, compare
from trainobs.analysis.step_time import newest_step, step_time
from trainobs.analysis.stored import (
    NO_FILE,
    go_back,
    gone,
    gone_of_others,
    has,
    lacking,
    missing_steps,
    others_at_odds,
    rows_at_odds,
    stored_steps,
)
from trainobs.analysis.straggler_parts import longer, told
from trainobs.analysis.table_lookups import TableLookups
from trainobs.analysis.tables import embeddings
from trainobs.analysis.unnamed_reads import OF_DATA, data_is_named, unnamed_bytes
from trainobs.analysis.verdicts import AllSteps
from trainobs.analysis.would_help import judged
from trainobs.core.abi import FileClass
from trainobs.core.catalogue import CATALOGUE, METRICS, STEP_METRICS
from trainobs.core.catalogue.hot_rows import SHARES
from trainobs.core.catalogue.named import metric_of_phase
from trainobs.core.catalogue.own_counters import metrics_of_counter
from trainobs.core.cells import StepCells
from trainobs.core.coverage import Coverage
from trainobs.core.histogram import BLOCK_READ, EDGES_NS, LATENCIES, Latency, percentile
from trainobs.core.metrics import MetricKind, evaluate
from trainobs.core.records import SETUP
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import (
    BATCHES,
    EMBEDDINGS,
    KERNEL,
    STEPS,
    part_file,
)
from trainobs.verdict.metric_names import BATCH_NEEDED, LOADER, LOADER_DEVICE, STEP
from trainobs.verdict.verdict import facts_from


def summarize(run: RunLog) -> dict[str, Any]:
    """Every metric of one rank of a run, and the step time of all of its ranks.

    Returns:
        A dictionary that `json.dumps` takes as it is; what was not measured is None. Its parts:

        * verdict: what bounds the `run`, and each of its `epochs`: see docs/verdicts.md.
        * attached: of a run observed from outside `pid`, `user`, `command`, `steps`, which says
          what a step is, and `events_per_step`; else None.
        * steps_are: what a step is, in words; None where a framework says so.
        * no_step: why there is none, in words, where the run says so.
        * is_part: whether these are only the newest steps.
        * step: see `analysis.step_time.step_time`; the verdict's shares are shares of its mean.
        * training_ns, own_cpu_ratio: see `analysis.own_cost`.
        * newest: see `analysis.step_time.newest_step`.
        * would_help: see `analysis.would_help.would_help`.
        * metrics: name -> unit; `sum` over the whole run, what came before the first step
          included; `mean`, `p50`, `p95` and `max` over steps. A ratio has no sum, and its mean is
          formed from the kernel cells of the whole run; the mean of a quantile is that quantile of
          all the run's events.
        * setup: what the sums contain from before the first step, where that is not zero.
        * embeddings: see `analysis.tables.embeddings`; the metrics of a table are among `metrics`,
          as `<metric>{table=<table>}`.
        * hot_rows: see `analysis.hot_rows.hot_rows`.
        * checkpoints: see `analysis.checkpoints.checkpoints`.
        * workers, loader: see `workers` and `together` of `analysis.loader_workers`.
        * io: see `analysis.io_numbers.files_read`.
        * unnamed_bytes, data_is_named: see `analysis.unnamed_reads`.
        * mapped_data, has_libaio: see `analysis.data_reads`.
        * latency: name -> distribution of the whole run, in ns.
        * own: what programs of the user's counted: `name` of the metric, `title`, `unit`, `probe`;
          the parts by role are among `metrics`, as `<name>{role=<role>}`.
        * lost: `events` and step records not counted; of these, steps `dropped` while the observer
          was held up, and what the `kernel` side dropped, by cause; `steps` that a sink dropped,
          and `because` of what; `files` that could not be read, and which of them `partly`;
          `missing_steps`, where files of this rank are missing, None if nobody knows how many;
          `at_odds` and `are_mixed`: see `rows_at_odds` and `go_back` of `analysis.stored`; of a
          run whose end is not recorded, `free_bytes` of the disk that it is on.
        * ranks, straggler: see `analysis.ranks.compare`; of the straggler `verdict`, too, the
          sentence on that rank.

    Raises:
        RunLogError: a file is damaged.
    """
    with run.rank.keeping(STEPS, _OFTEN):
        return _summary(run, run.rank)


_OFTEN = tuple(
    dict.fromkeys(
        ("step", "epoch", "start_ns", STEP, LOADER, LOADER_DEVICE, *CHECKPOINTS, *WAITED, *COMPARED)
    )
)
"""Columns that several parts of a summary need."""


def _summary(run: RunLog, rank: RankLog) -> dict[str, Any]:
    with rank.keeping(BATCHES, {*BATCH_NEEDED, *OF_A_BATCH}):
        are_whole = not lacking(run, rank, BATCHES)
        taken = AllSteps(rank, is_part=run.is_part, batches_are_whole=are_whole)
        makers, others, of_steps = workers(rank), of_no_step(rank), got(rank)
    if not are_whole and sum(one["batches"] for one in makers) > (of_steps or math.inf):
        makers = []  # some are there twice, or another run's
    metrics, setup, buckets = _metrics(run, rank, taken)
    steps, all_ns = taken.steps, training_ns(metrics, setup)
    facts = facts_from(run.info)
    are_all = not lacking(run, rank, EMBEDDINGS)
    lookups = TableLookups(rank, is_part=run.is_part, are_whole=are_all)
    metrics |= lookups.metrics()
    about_tables = embeddings(run, rank, lookups)  # before what is lost is told
    mapped, unnamed = mapped_data(metrics), unnamed_bytes(run, rank)
    latencies = {one.name: _distribution(one, buckets) for one in LATENCIES}
    if unnamed is not None:
        latencies |= {one.name: None for one in LATENCIES if one.file_class is FileClass.DATA}
        setup = {name: total for name, total in setup.items() if name not in OF_DATA}
        metrics |= {name: {"unit": metrics[name]["unit"], **_UNKNOWN} for name in OF_DATA}
    return {
        **_facts(run, rank),
        "steps": int((rank.step() != SETUP).sum()),
        "is_part": run.is_part,
        "epochs": len(steps.epochs),
        "step": step_time(rank, steps.run, facts),
        "training_ns": all_ns,
        "own_cpu_ratio": own_cpu_ratio(metrics, all_ns),
        "newest": newest_step(rank, run.info),
        **judged(run, steps),
        "metrics": metrics,
        "setup": setup,
        "checkpoints": checkpoints(rank),
        "workers": makers,
        "loader": together(makers, others, facts, got=of_steps, are_whole=are_whole),
        "embeddings": about_tables,
        "hot_rows": hot_rows(rank, about_tables) if _HOT_ROWS in _probes(run) else None,
        "latency": latencies,
        "io": files_read(run, rank, unnamed),
        "unnamed_bytes": unnamed,
        "data_is_named": data_is_named(run),
        "mapped_data": mapped,
        "has_libaio": has_libaio(rank),
        "own": [{"name": one.name, **asdict(one)} for one in rank.counters],
        "lost": _lost(run, rank, metrics),
        **_compared(run),
    }


def _compared(run: RunLog) -> dict[str, Any]:
    found = compare(run.ranks, run.info.get("world_size", 1))
    late = (found["straggler"] or {}).get("rank")
    if late is not None:
        waits = {
            rank: row["arrival_wait_ns"] if row["wait_ns"] is None else row["wait_ns"]
            for rank, row in found["ranks"].items()
            if rank != late and row["steps"]
        }
        other = max(waits, key=lambda rank: waits[rank] or 0.0)
        part = longer(run.ranks[late], run.ranks[other], found["straggler"]["held_up_ns"])
        found["straggler"] |= {"longer": part, "because": part and told(part, other)}
    return found


_HOT_ROWS = "hot_rows"
_UNKNOWN: Statistics = dict.fromkeys(("sum", "mean", "p50", "p95", "max"))


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


def _facts(run: RunLog, rank: RankLog) -> dict[str, Any]:
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
    }


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


def _distribution(latency: Latency, buckets: npt.NDArray[np.uint64]) -> dict[str, Any] | None:
    counts = latency.total(buckets)
    if not counts.any():
        return None
    return {
        "title": latency.title,
        "count": int(counts.sum()),
        **{f"p{q}_ns": float(percentile(counts, q / 100)) for q in (50, 95, 99)},
        "buckets": [
            {"from_ns": int(EDGES_NS[b]), "to_ns": int(EDGES_NS[b + 1]), "count": int(counts[b])}
            for b in np.flatnonzero(counts)
        ],
    }


def _lost(run: RunLog, rank: RankLog, metrics: dict[str, Statistics]) -> dict[str, Any]:
    ended = run.info.get("summary") or {}
    events = metrics["obs/lost_count"]["sum"]
    steps = rank.step()[rank.step() >= 0]
    gaps = int((np.diff(steps) - 1).clip(0).sum())  # a run that was killed tells of none
    missing = dict.fromkeys(gone_of_others(run), NO_FILE)
    files = run.unreadable | _gone(run, rank, metrics) | missing
    return {
        "events": events,
        # A run that was killed has not written how many.
        "dropped": ended.get("dropped_steps", min(gaps, events or 0)),
        "kernel": ended.get("losses", {}),
        "steps": ended.get("lost_steps", {}),
        "because": ended.get("lost_because", {}),
        "files": {str(path): reason for path, reason in files.items()},
        "partly": [str(path) for path in _read_in_part(run) if path in files],
        "missing_steps": missing_steps(run, rank),
        "at_odds": rows_at_odds(run, rank) | others_at_odds(run),
        "are_mixed": go_back(run, rank),
        "free_bytes": None if ended else _free_bytes(run.path),
    }


def _read_in_part(run: RunLog) -> Iterator[Path]:
    """Files that can be read, if not in all columns."""
    for rank in run.ranks.values():
        yield from chain.from_iterable(rank.files.values())


def _gone(run: RunLog, rank: RankLog, metrics: dict[str, Statistics]) -> dict[Path, str]:
    """Tables that are not there, though others tell of what was in them.

    Steps have numbers that are formed from the kernel's cells; batches name the steps they were
    for.
    """
    formed = (metrics[metric.name]["max"] is not None for metric in CATALOGUE if metric.formula)
    states = run.info.get("capabilities") or {}
    by_kernel = any(states.get(program) == "on" for program in Coverage.EVERY_PROGRAM)
    tables = [KERNEL] if by_kernel and any(formed) and not has(rank, KERNEL) else []
    batches = rank.columns(BATCHES, ("for_step",))["for_step"]
    if not has(rank, STEPS) and (stored_steps(run, rank) or (batches >= 0).any()):
        tables.append(STEPS)
    files = [part_file(run.path, rank.rank, table, 0) for table in tables]
    return dict.fromkeys((*files, *gone(run, rank)), NO_FILE)


def _free_bytes(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
