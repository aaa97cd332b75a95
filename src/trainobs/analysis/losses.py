"""What the numbers of a run lack: what was not counted, and what files are gone or damaged."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TypedDict

import numpy as np

from trainobs.analysis.metric_statistics import Statistics
from trainobs.analysis.stored import (
    NO_FILE,
    go_back,
    gone,
    gone_of_others,
    has,
    missing_steps,
    others_at_odds,
    rows_at_odds,
    stored_steps,
)
from trainobs.core.catalogue import CATALOGUE
from trainobs.core.coverage import Coverage
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import BATCHES, KERNEL, STEPS, part_file


class Lost(TypedDict):
    """What is lost of a run.

    Attributes:
        events: and step records that were not counted.
        dropped: of these, steps that the observer was held up for.
        kernel: of these, what the kernel side dropped, by cause.
        steps, because: sink -> steps that it dropped, and why.
        files: file -> why it could not be read.
        partly: those of them that could not be read in all columns.
        missing_steps: of files of this rank that are missing; None if nobody knows how many.
        at_odds, are_mixed: see `rows_at_odds` and `go_back` of `analysis.stored`.
        free_bytes: of the disk that a run is on whose end is not recorded.
    """

    events: float | None
    dropped: int
    kernel: dict[str, int]
    steps: dict[str, int]
    because: dict[str, str]
    files: dict[str, str]
    partly: list[str]
    missing_steps: int | None
    at_odds: dict[str, dict[str, int]]
    are_mixed: bool
    free_bytes: int | None


def lost(run: RunLog, rank: RankLog, metrics: Mapping[str, Statistics]) -> Lost:
    """What is lost of one rank of a run, and which files of all ranks.

    Args:
        run: its log.
        rank: the part of it that is told of.
        metrics: statistics by name.
    """
    ended = run.info.get("summary") or {}
    events = metrics["obs/lost_count"]["sum"]
    steps = rank.step()[rank.step() >= 0]
    gaps = int((np.diff(steps) - 1).clip(0).sum())  # a run that was killed tells of none
    missing = dict.fromkeys(gone_of_others(run), NO_FILE)
    files = run.unreadable | _gone(run, rank, metrics) | missing
    return {
        "events": events,
        # A run that was killed has not written how many.
        "dropped": ended.get("dropped_steps", min(gaps, int(events or 0))),
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


def _gone(run: RunLog, rank: RankLog, metrics: Mapping[str, Statistics]) -> dict[Path, str]:
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
