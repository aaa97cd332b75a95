"""The ranks of a job side by side, and the one that the others wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trainobs.analysis.stragglers import by_waiting, lateness, meetings
from trainobs.core.records import SETUP
from trainobs.runlog.rank import RankLog

Row = dict[str, Any]

_STEP, _BACKWARD, _WAIT = "step/duration_ns", "phase/backward_ns", "ranks/wait_ns"

COMPARED = (_STEP, _BACKWARD, _WAIT)
"""Metrics that are looked at."""


def compare(ranks: Mapping[int, RankLog]) -> dict[str, Any]:
    """Steps and waits of every rank, and who made whom wait.

    Returns:
        `ranks`: rank -> `host`, `steps`, `p50_ns`, `p95_ns` and `mean_ns` (without the first) of
        the step, mean of `backward_ns` and of `wait_ns` (as the rank's own kernel counted it), and
        by arrival at the collectives `most_ratio`, `arrival_wait_ns` and `held_up_ns`; None where
        unknown.
        `straggler`: None for a single rank; else `known`, whether it can be told; `by`
        ("arrival" or "waiting"); `rank`, None if nobody is one; `steps` compared; and of the
        straggler `held_up_ns`, `share` of the step and `most_ratio`.
    """
    rows = {number: _row(log) for number, log in ranks.items()}
    trained = [number for number, row in rows.items() if row["steps"]]
    if len(trained) < 2:
        return {"ranks": rows, "straggler": None}
    times = [rows[number]["p50_ns"] for number in trained]
    step_ns = 0.0 if None in times else float(np.median(times))
    if not step_ns:
        return {"ranks": rows, "straggler": _UNKNOWN}
    if len({ranks[number].host for number in trained}) == 1 and rows[trained[0]]["host"]:
        first = ranks[trained[0]]
        met = meetings([ranks[number].arrivals() for number in trained])
        late = lateness(met, first.start_ns()[first.step() != SETUP], step_ns)
        if late:
            return {"ranks": rows, "straggler": _of_steps(rows, _by_arrival(rows, trained, late))}
    return {"ranks": rows, "straggler": _of_steps(rows, _by_waiting(rows, trained, step_ns))}


_UNKNOWN: Row = {"known": False, "by": None, "rank": None, "steps": 0}


def _of_steps(rows: Mapping[int, Row], found: Row) -> Row:
    """With the share of the mean step: where ranks meet in some steps only, others are short."""
    if found["rank"] is not None:
        means = [row["mean_ns"] for row in rows.values() if row["mean_ns"] is not None]
        found["share"] = found["held_up_ns"] / float(np.median(means))
    return found


def _row(log: RankLog) -> Row:
    training = log.step() != SETUP
    read = log.metrics(COMPARED)
    steps, backward, wait = (column[training] for column in read.values())
    steps = steps[np.isfinite(steps)]
    p50, p95 = np.percentile(steps, (50, 95)).tolist() if steps.size else (None, None)
    return {
        "host": log.host,
        "steps": int(training.sum()),
        "p50_ns": p50,
        "p95_ns": p95,
        "mean_ns": _mean(steps[1:] if steps.size > 1 else steps),
        "backward_ns": _mean(backward),
        "wait_ns": _mean(wait),
        "most_ratio": None,
        "arrival_wait_ns": None,
        "held_up_ns": None,
    }


def _mean(values: npt.NDArray[np.float64]) -> float | None:
    values = values[np.isfinite(values)]
    return float(values.mean()) if values.size else None


def _by_arrival(rows: Mapping[int, Row], trained: Sequence[int], late: Row) -> Row:
    for index, number in enumerate(trained):
        rows[number]["most_ratio"] = late["most_ratio"][index]
        rows[number]["arrival_wait_ns"] = late["wait_ns"][index]
        rows[number]["held_up_ns"] = late["held_up_ns"][index]
    found: Row = {"known": True, "by": "arrival", "rank": None, "steps": late["steps"]}
    if late["straggler"] is not None:
        number = trained[late["straggler"]]
        found |= {name: rows[number][name] for name in ("held_up_ns", "most_ratio")}
        found["rank"] = number
    return found


def _by_waiting(rows: Mapping[int, Row], trained: Sequence[int], step_ns: float) -> Row:
    waits = [rows[number]["wait_ns"] for number in trained]
    if None in waits:
        return _UNKNOWN
    found: Row = {"known": True, "by": "waiting", "rank": None, "steps": 0}
    index = by_waiting(waits, step_ns)
    if index is not None:
        held_up = min(wait for i, wait in enumerate(waits) if i != index) - waits[index]
        found |= {"rank": trained[index], "held_up_ns": held_up}
    return found
