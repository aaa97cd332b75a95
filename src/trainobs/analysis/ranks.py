"""The ranks of a job side by side, and the one that the others wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainobs.analysis.stragglers import (
    MIN_STEPS,
    SHARE,
    by_waiting,
    lateness,
    meetings,
    too_long,
)
from trainobs.core.records import SETUP
from trainobs.replay.trace import COVERAGE
from trainobs.runlog.rank import RankLog

Row = dict[str, Any]
Rows = npt.NDArray[np.int64]

_STEP, _BACKWARD, _WAIT = "step/duration_ns", "phase/backward_ns", "ranks/wait_ns"

COMPARED = (_STEP, _BACKWARD, _WAIT)
"""Metrics that are looked at."""


def compare(ranks: Mapping[int, RankLog], world_size: int) -> dict[str, Any]:
    """Steps and waits of every rank, and who made whom wait.

    Args:
        ranks: those whose logs are at hand.
        world_size: how many the job has; of one that is not here nobody knows who waits for it.

    Returns:
        `ranks`: rank -> `host`, `has_ended`, `steps`, `p50_ns`, `p95_ns` and `mean_ns` (without the
        first) of the step, mean of `backward_ns` and of `wait_ns` (as the rank's own kernel counted
        it), and by arrival at the collectives `most_ratio`, `arrival_wait_ns` and `held_up_ns`;
        None where unknown.
        `straggler`: None for a single rank; else `known`, whether it can be told, and `why` not;
        `by` ("arrival" or "waiting"); `rank`, None if nobody is one; `steps` compared; and of the
        straggler `held_up_ns`, `share` of the step and `most_ratio`.
    """
    rows = {number: _row(log) for number, log in ranks.items()}
    trained = [number for number, row in rows.items() if row["steps"]]
    if len(trained) < 2:
        return {"ranks": rows, "straggler": None}
    if _of_jobs([ranks[number] for number in trained]) > 1:
        return {"ranks": rows, "straggler": _unknown(_JOBS)}
    if missing := max(0, world_size - len(trained)):
        return {"ranks": rows, "straggler": _unknown(_MISSING.format(missing, world_size))}
    times = [rows[number]["p50_ns"] for number in trained]
    step_ns = 0.0 if None in times else float(np.median(times))
    if not step_ns:
        return {"ranks": rows, "straggler": _unknown(_UNTIMED)}
    found = _by_arrival(ranks, rows, trained, step_ns)
    if found["rank"] is None:
        waiting = _by_waiting(ranks, rows, trained, step_ns, found.get("why"))
        found = waiting if not found["known"] or _is_news(waiting, rows, trained) else found
    return {"ranks": rows, "straggler": _of_steps(rows, found)}


class CommonSteps(NamedTuple):
    """The steps that two ranks took.

    Attributes:
        here: their rows in the record of the one.
        there: those of the other.
        together: whether the ranks may wait for each other: then neither gets ahead of the other.
            From the second of these steps to the last one begins they take equally long but for two
            steps. None: there are too few.
    """

    here: Rows
    there: Rows
    together: bool | None


def common_steps(one: RankLog, other: RankLog) -> CommonSteps:
    """By the numbers of steps; by epoch and number where a job counts anew in each epoch."""
    if _of_jobs([one, other]) > 1:
        return CommonSteps(_NO_ROWS, _NO_ROWS, together=None)
    keys = [one.step(), other.step()]
    if any(map(_repeats, keys)):
        keys = [(rank.epoch().astype(np.int64) << 40) + rank.step() for rank in (one, other)]
    if any(map(_repeats, keys)):
        return CommonSteps(_NO_ROWS, _NO_ROWS, together=None)
    _, here, there = np.intersect1d(keys[0], keys[1], return_indices=True)
    trained = one.step()[here] != SETUP
    here, there = here[trained], there[trained]
    if len(here) <= MIN_STEPS:
        return CommonSteps(here, there, together=None)
    begins = one.start_ns()[here][1:], other.start_ns()[there][1:]
    apart = abs(np.ptp(begins[0]) - np.ptp(begins[1]))
    return CommonSteps(here, there, bool(apart <= 2 * np.percentile(np.diff(begins), 95)))


def _of_jobs(ranks: Sequence[RankLog]) -> int:
    """How many jobs ranks are surely of."""
    return len({rank.job for rank in ranks} - {None})


def _repeats(keys: Rows) -> bool:
    return len(np.unique(keys)) < len(keys)


_NO_ROWS: Rows = np.empty(0, np.int64)

_READING_NS, _APART_RATIO = 1_000_000, 0.01
"""How far apart two clocks may seem, at least and as a share of the step: they are read in turn."""

_JOBS = "they are ranks of several jobs, which began here at once"
_MISSING = "no steps are at hand of {} of {} ranks"
_UNTIMED = "not every rank has timed its steps"
_APART = "they do not take their steps together"
_FEW = "they have too few steps in common"
_CLOCKS = "ranks are on several nodes, whose clocks differ"
_OFFSETS = "their clocks differ, or were set as they began"
_UNMET = "too few collectives of all ranks are recorded"
_WENT_ON = "a rank came early to collectives and went on"
_UNMEASURED = "and not every rank knows how long it waited"


def _unknown(why: str) -> Row:
    return {"known": False, "why": why, "by": None, "rank": None, "steps": 0}


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
        "has_ended": log.has_ended,
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


def _by_arrival(
    ranks: Mapping[int, RankLog], rows: Mapping[int, Row], trained: Sequence[int], step_ns: float
) -> Row:
    """Not known where arrivals do not tell, or do not go with how long ranks slept."""
    if len({ranks[number].host for number in trained}) > 1 or not rows[trained[0]]["host"]:
        return _unknown(_CLOCKS)
    if _clocks_differ([ranks[number].clock_ns for number in trained], step_ns):
        return _unknown(_OFFSETS)
    first = ranks[trained[0]]
    met = meetings([ranks[number].arrivals() for number in trained])
    late = lateness(met, first.start_ns()[first.step() != SETUP], step_ns)
    slept = [rows[number]["wait_ns"] for number in trained]
    if not late:
        return _unknown(_UNMET)
    if too_long(late, slept, step_ns):
        return _unknown(_WENT_ON)
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


def _clocks_differ(clocks_ns: Sequence[int | None], step_ns: float) -> bool:
    """Whether the clocks of ranks are apart by more than nobody would take for a wait.

    Containers of several nodes may have one name, and time namespaces have clocks of their own.
    Nodes keep one wall clock, but not the moment at which they booted.
    """
    known = [clock for clock in clocks_ns if clock is not None]
    return bool(known) and max(known) - min(known) > max(_READING_NS, _APART_RATIO * step_ns)


def _is_news(waiting: Row, rows: Mapping[int, Row], trained: Sequence[int]) -> bool:
    """Whether ranks wait for one in what no record of all ranks tells, as messages between two."""
    if waiting["rank"] is None:
        return False
    told = min(rows[number]["arrival_wait_ns"] for number in trained if number != waiting["rank"])
    return bool(told < COVERAGE * waiting["held_up_ns"])


def _by_waiting(
    ranks: Mapping[int, RankLog],
    rows: Mapping[int, Row],
    trained: Sequence[int],
    step_ns: float,
    why: str | None,
) -> Row:
    """By the means of steps, and by their medians: a rank that stalls once is no straggler.

    `why` is why arrivals do not tell.
    """
    waits = [rows[number]["wait_ns"] for number in trained]
    if None in waits:
        return _unknown(f"{why}, {_UNMEASURED}")
    found: Row = {"known": True, "by": "waiting", "rank": None, "steps": 0}
    index = by_waiting(waits, step_ns)
    if index is None:
        return found
    late = ranks[trained[index]]
    others = [ranks[number] for number in trained if number != trained[index]]
    common = [common_steps(late, other) for other in others]
    together = [one.together for one in common]
    if not all(together):
        return _unknown(_FEW if None in together else _APART)
    pairs = [_waited_more(late, other, one) for other, one in zip(others, common, strict=True)]
    if min(median for _, median in pairs) >= SHARE * step_ns:
        found |= {"rank": trained[index], "held_up_ns": min(mean for mean, _ in pairs)}
    return found


def _waited_more(late: RankLog, other: RankLog, common: CommonSteps) -> tuple[float, float]:
    """How much longer than one rank another waited in a step of both, mean and median."""
    more = other.metric(_WAIT)[common.there] - late.metric(_WAIT)[common.here]
    more = more[np.isfinite(more)]
    return (float(more.mean()), float(np.median(more))) if more.size else (0.0, 0.0)
