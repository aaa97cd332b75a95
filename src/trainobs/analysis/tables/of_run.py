"""Embedding tables of a run: what is told of them beside their metrics."""

from __future__ import annotations

import dataclasses
from typing import Any, TypedDict

import numpy as np

from trainobs.analysis.tables.hot_rows import all_hot_bytes
from trainobs.analysis.tables.lookup_time import ByBytes, explained
from trainobs.analysis.tables.lookups import TableLookups
from trainobs.analysis.tables.skew import Skew, load_counts, skew
from trainobs.core.errors import AccessCountsError
from trainobs.core.records import SETUP
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import COUNTS_DIR


class LookupTime(TypedDict):
    """Of a step, the time in the modules that look up, also as a share; None if not measured."""

    forward_ns: float | None
    forward_ratio: float | None
    by_bytes: ByBytes


class Embeddings(TypedDict):
    """What is told of the embedding tables beside their metrics.

    Attributes:
        state: "on", or why counting ended.
        tables: what is true of each: the fields of `EmbeddingTable`.
        steps, sampled_steps: how many, and of these those of which ids were taken.
        time: see there.
        skew: of all ranks together, where rows were counted.
    """

    state: str | None
    tables: list[dict[str, Any]]
    steps: int
    sampled_steps: int
    time: LookupTime
    skew: Skew | None


def embeddings(run: RunLog, rank: RankLog, lookups: TableLookups) -> Embeddings | None:
    """What is told of the embedding tables beside their metrics; None for a model without any."""
    if not rank.tables:
        return None
    return {
        "state": run.info.get("capabilities", {}).get("embeddings"),
        "tables": [dataclasses.asdict(table) for table in rank.tables],
        "steps": lookups.step_count,
        "sampled_steps": lookups.sampled_count,
        "time": _time(rank, lookups),
        "skew": _skew(run, rank, lookups),
    }


def _skew(run: RunLog, rank: RankLog, lookups: TableLookups) -> Skew | None:
    try:
        counts = load_counts(run.path)
    except AccessCountsError as error:
        run.unreadable[run.path / COUNTS_DIR] = error.found
        return None
    if counts is None:
        return None
    if counts.steps is None:  # an older trainobs did not say
        counts.pass_steps(lookups.step_count, lookups.sampled_count)
    hot_bytes = all_hot_bytes(rank, run.info.get("world_size", 1))
    return skew(counts, rank.tables, hot_bytes)


def _time(rank: RankLog, lookups: TableLookups) -> LookupTime:
    """Each table's time is known in other steps, perhaps; the sum is that of their means."""
    forward_ns = lookups.forward_ns()
    step_ns = rank.metric("step/duration_ns")[rank.step() != SETUP]
    known = np.isfinite(forward_ns).any() and np.isfinite(step_ns).any()
    spent_ns = float(np.nansum(forward_ns)) if known else None
    return {
        "forward_ns": spent_ns,
        "forward_ratio": spent_ns / float(np.nanmean(step_ns)) if spent_ns else None,
        "by_bytes": explained(rank),
    }
