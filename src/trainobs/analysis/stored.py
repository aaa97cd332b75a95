"""Whether the files of a rank are those that its run stored: some may be gone, or another run's."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from trainobs.analysis.batches.workers import GOT
from trainobs.core.records import SETUP
from trainobs.runlog.columns import TABLES
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import BATCHES, LATENCY, STEPS, latency_file, part_file, part_number
from trainobs.verdict.metric_names import LOADER_DEVICE

NO_FILE = "no such file"

_SLACK_NS = 10**9
_AHEAD = 16
"""Steps whose batches may be in the next part, since they were fetched ahead."""


def stored_steps(run: RunLog, rank: RankLog) -> int:
    """0 where that is not known, as of a rank without a file about it."""
    return int(_ended(run, rank).get("stored_steps", 0))


def missing_steps(run: RunLog, rank: RankLog) -> int | None:
    """Steps of files that are gone: as many as the run stored and are not there, or by numbers.

    What the last files of a run that was killed had nobody knows. None where numbers leap, too, by
    steps that were never stored.
    """
    if not run.is_part and (stored := stored_steps(run, rank)):
        return max(stored - int((rank.step() != SETUP).sum()), 0)
    missing, row, before, last = 0, 0, -1, -1
    for file, rows in zip(rank.files[STEPS], rank.files.rows(STEPS), strict=True):
        numbers = rank.step()[row : (row := row + rows)]
        steps, part = numbers[numbers != SETUP], part_number(file)
        is_known = before >= 0 or not run.is_part
        if len(steps) and part > before + 1 and is_known:
            missing += max(int(steps[0]) - last - 1, 0)
        before, last = part, int(steps[-1]) if len(steps) else last
    ended = run.info.get("summary") or {}
    never_stored = ended.get("dropped_steps") or ended.get("lost_steps", {}).get("runlog")
    return None if missing and never_stored else missing


def rows_at_odds(run: RunLog, rank: RankLog) -> dict[str, dict[str, int]]:
    """Table -> rows that were `found`, and `stored`, where its files can be read and these differ.

    Of steps only where there are too many: see `missing_steps`.
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
    """The first file of each table that has rows stored, and no file; and files of batches."""
    return list(dict.fromkeys((*_gone_tables(run, rank), *_gone_batches(run, rank))))


def gone_of_others(run: RunLog) -> list[Path]:
    """The same of all ranks but the one that is told of, without batches of killed runs."""
    return list(chain.from_iterable(_gone_tables(run, other) for other in _others(run)))


def others_at_odds(run: RunLog) -> dict[str, dict[str, int]]:
    """`rows_at_odds` of all ranks but the one that is told of, also where they lack steps."""
    found: dict[str, dict[str, int]] = {}
    for other in _others(run):
        odds, stored = rows_at_odds(run, other), stored_steps(run, other)
        if stored and (missing := missing_steps(run, other)):
            odds[STEPS] = {"found": stored - missing, "stored": stored}
        found |= {f"rank={other.rank}/{table}": counts for table, counts in odds.items()}
    return found


def _others(run: RunLog) -> list[RankLog]:
    return [rank for rank in run.ranks.values() if rank is not run.rank]


def _gone_tables(run: RunLog, rank: RankLog) -> list[Path]:
    return [
        latency_file(run.path, rank.rank)
        if table == LATENCY
        else part_file(run.path, rank.rank, table, 0)
        for table in _stored_rows(run, rank)
        if not has(rank, table)
    ]


def lacking(run: RunLog, rank: RankLog, table: str) -> dict[Path, str]:
    """Files of a table that are gone, not those of the run, or not all readable -> why.

    What rests on all rows of that table is then unknown: some of them would be taken for all.
    """
    missing = (file for file in gone(run, rank) if file.name.startswith(f"{table}-"))
    found = rank.files.unreadable(table) | dict.fromkeys(missing, NO_FILE)
    if not found and (odds := rows_at_odds(run, rank).get(table)):
        first = part_file(run.path, rank.rank, table, 0)
        counts = f"{odds['found']:,} rows of {odds['stored']:,} stored"
        found = {first.with_name(f"{table}-*.parquet"): counts}
    return found


def _gone_batches(run: RunLog, rank: RankLog) -> list[Path]:
    """The last files, of parts whose steps know what made their batches, also of a killed run."""
    there = (*rank.files[BATCHES], *rank.files.unreadable(BATCHES))
    last, row = max(map(part_number, there), default=-1), 0
    found: dict[Path, int] = {}
    read = rank.metrics((LOADER_DEVICE, GOT))
    got = np.isfinite(read[LOADER_DEVICE]) & (read[GOT] > 0)
    for file, rows in zip(rank.files[STEPS], rank.files.rows(STEPS), strict=True):
        known, number = int(got[row : (row := row + rows)].sum()), part_number(file)
        if known and number > last:
            found[part_file(run.path, rank.rank, BATCHES, number)] = known
    return list(found) if sum(found.values()) > _AHEAD else []


def go_back(run: RunLog, rank: RankLog) -> bool:
    """Whether a step begins before the one in front of it, or before the run.

    Then the files are of several runs, or of another.
    """
    read = rank.columns(STEPS, ("step", "start_ns"))  # at once: files of a live run grow
    starts = read["start_ns"][read["step"] != SETUP]
    is_own = run.info.get("rank", 0) == rank.rank  # each rank has a clock of its own
    began = run.info.get("clock", {}).get("monotonic_ns", 0) if is_own else 0
    return bool((np.diff(starts) < 0).any() or (starts < began - _SLACK_NS).any())


def has(rank: RankLog, table: str) -> bool:
    """Whether a table has any file, readable or not."""
    return bool(rank.files[table] or rank.files.unreadable(table))


def _unread(rank: RankLog, table: str) -> bool:
    return not rank.files.unreadable(table).keys() <= set(rank.files[table])


def _stored_rows(run: RunLog, rank: RankLog) -> dict[str, int]:
    rows = _ended(run, rank).get("stored_rows", {})
    return {table: count for table, count in rows.items() if count and table in TABLES}


def _ended(run: RunLog, rank: RankLog) -> dict[str, Any]:
    is_own = run.info.get("rank", 0) == rank.rank
    info = run.info if is_own or rank.rank not in run.ranks else run.of(rank.rank).info
    return info.get("summary") or {}
