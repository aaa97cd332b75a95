"""Whether the files of a rank are those that its run stored: some may be gone, or another run's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trainobs.core.records import SETUP
from trainobs.runlog.columns import TABLES
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import LATENCY, STEPS, latency_file, part_file


def stored_steps(run: RunLog, rank: RankLog) -> int:
    """0 where that is not known, as of a rank that is told of for want of rank 0."""
    return int(_ended(run, rank).get("stored_steps", 0))


def rows_at_odds(run: RunLog, rank: RankLog) -> dict[str, dict[str, int]]:
    """Table -> rows that were `found`, and `stored`, where its files can be read and these differ.

    Of steps only where there are too many: see `missing_steps` of `analysis.summary`.
    """
    if run.is_part:
        return {}
    told = {table: rows for table, rows in _stored_rows(run, rank).items() if has(rank, table)}
    found = {table: sum(rank.files.rows(table)) for table in told if not _unread(rank, table)}
    if steps := stored_steps(run, rank):
        count = int((rank.step() != SETUP).sum())
        told, found = told | {STEPS: steps}, found | {STEPS: max(steps, count)}
    return {
        table: {"found": rows, "stored": told[table]}
        for table, rows in found.items()
        if rows != told[table]
    }


def gone(run: RunLog, rank: RankLog) -> list[Path]:
    """The first file of each table that has rows stored, and no file."""
    return [
        latency_file(run.path, rank.rank)
        if table == LATENCY
        else part_file(run.path, rank.rank, table, 0)
        for table in _stored_rows(run, rank)
        if not has(rank, table)
    ]


def go_back(rank: RankLog) -> bool:
    """Whether a step begins before the one in front of it: then the files are of several runs."""
    read = rank.columns(STEPS, ("step", "start_ns"))  # at once: files of a live run grow
    return bool((np.diff(read["start_ns"][read["step"] != SETUP]) < 0).any())


def has(rank: RankLog, table: str) -> bool:
    """Whether a table has any file, readable or not."""
    return bool(rank.files[table] or rank.files.unreadable(table))


def _unread(rank: RankLog, table: str) -> bool:
    return not rank.files.unreadable(table).keys() <= set(rank.files[table])


def _stored_rows(run: RunLog, rank: RankLog) -> dict[str, int]:
    rows = _ended(run, rank).get("stored_rows", {})
    return {table: count for table, count in rows.items() if count and table in TABLES}


def _ended(run: RunLog, rank: RankLog) -> dict[str, Any]:
    return (run.info.get("summary") or {}) if run.info.get("rank", 0) == rank.rank else {}
