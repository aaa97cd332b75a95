"""The ranks of a job side by side, and the one that the others wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from trainobs.analysis.ranks.straggler_parts import LongerPart, longer, told
from trainobs.analysis.ranks.stragglers import (
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

Rows = npt.NDArray[np.int64]

_STEP, _BACKWARD, _WAIT = "step/duration_ns", "phase/backward_ns", "ranks/wait_ns"

COMPARED = (_STEP, _BACKWARD, _WAIT)
"""Metrics that are looked at."""


class RankRow(TypedDict):
    """What is told of one rank; None where unknown.

    Attributes:
        host, has_ended, steps: see `RankLog`; `steps` without what came before the first.
        outcome: how it ended, if it wrote that down.
        p50_ns, p95_ns, mean_ns: of the step; the mean without the first.
        backward_ns: the mean.
        wait_ns: the mean, as the rank's own kernel counted it.
        most_ratio, arrival_wait_ns, held_up_ns: by arrival at the collectives: see `Lateness`.
    """

    host: str | None
    has_ended: bool
    outcome: str | None
    steps: int
    p50_ns: float | None
    p95_ns: float | None
    mean_ns: float | None
    backward_ns: float | None
    wait_ns: float | None
    most_ratio: float | None
    arrival_wait_ns: float | None
    held_up_ns: float | None


class Answer(TypedDict):
    """Whether one rank makes the others wait.

    Attributes:
        known: whether that can be told.
        by: "arrival" or "waiting"; None where it cannot.
        rank: the straggler; None if nobody is one.
        steps: that were compared.
    """

    known: bool
    by: str | None
    rank: int | None
    steps: int


class Straggler(Answer, total=False):
    """The same with what there is to tell of it.

    Attributes:
        why: it cannot be told.
        held_up_ns, share, most_ratio: of a straggler: what it costs the others in a step, also as a
            share of the mean step of the rank that is told of; and, by arrival, of how many steps.
            `most_ratio` as in `Lateness`.
        longer, because: what it takes longer for, also in words; None where nothing is found.
        mostly, mostly_ns, rest_ns: where nobody is a straggler, the rank that the others wait for
            in most steps, how long, and how long they wait for the rest as well.
        at_times, at_times_ns: a rank that the others wait for, or for longer, in some steps, and
            how long in the mean of all: see `Lateness`.
    """

    why: str
    held_up_ns: float
    share: float
    most_ratio: float
    longer: LongerPart | None
    because: str | None
    mostly: int
    mostly_ns: float
    rest_ns: float
    at_times: int
    at_times_ns: float


class Compared(TypedDict):
    """All ranks, by number; and who the others wait for, None of a single rank."""

    ranks: dict[int, RankRow]
    straggler: Straggler | None


def compare(ranks: Mapping[int, RankLog], world_size: int, shown: int) -> Compared:
    """Steps and waits of every rank, and who made whom wait.

    Args:
        ranks: those whose logs are at hand.
        world_size: how many the job has; of one that is not here nobody knows who waits for it.
        shown: the rank that is told of, of whose step a straggler costs a share.
    """
    rows = {number: _row(log) for number, log in ranks.items()}
    trained = [number for number, row in rows.items() if row["steps"]]
    if len(trained) < 2:
        return {"ranks": rows, "straggler": None}
    if _of_jobs([ranks[number] for number in trained]) > 1:
        return {"ranks": rows, "straggler": _unknown(_JOBS)}
    if missing := max(0, world_size - len(trained)):
        return {"ranks": rows, "straggler": _unknown(_MISSING.format(missing, world_size))}
    times = [ns for number in trained if (ns := rows[number]["p50_ns"]) is not None]
    step_ns = float(np.median(times)) if len(times) == len(trained) else 0.0
    if not step_ns:
        return {"ranks": rows, "straggler": _unknown(_UNTIMED)}
    found = _by_arrival(ranks, rows, trained, step_ns)
    if found["rank"] is None:
        waiting = _by_waiting(ranks, rows, trained, step_ns, found.get("why"))
        found = waiting if not found["known"] or _is_news(waiting, rows, trained) else found
    if found["rank"] is not None:
        _explain(found, found["rank"], ranks, rows)
        # Of the mean: where ranks meet in some steps only, others are short.
        found["share"] = found["held_up_ns"] / (rows[shown]["mean_ns"] or step_ns)
    return {"ranks": rows, "straggler": found}


def waited_ns(row: RankRow) -> float | None:
    """What a rank waited in a step: as its kernel counted it, else by arrival."""
    return row["arrival_wait_ns"] if row["wait_ns"] is None else row["wait_ns"]


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


def _unknown(why: str) -> Straggler:
    return {"known": False, "why": why, "by": None, "rank": None, "steps": 0}


def _explain(
    found: Straggler, late: int, ranks: Mapping[int, RankLog], rows: Mapping[int, RankRow]
) -> None:
    """Add what the straggler takes longer for."""
    waits = {rank: waited_ns(row) for rank, row in rows.items() if rank != late and row["steps"]}
    other = max(waits, key=lambda rank: waits[rank] or 0.0)
    found["longer"] = longer(ranks[late], ranks[other], found["held_up_ns"])
    found["because"] = found["longer"] and told(found["longer"], other)


def _row(log: RankLog) -> RankRow:
    training = log.step() != SETUP
    read = log.metrics(COMPARED)
    steps, backward, wait = (column[training] for column in read.values())
    steps = steps[np.isfinite(steps)]
    p50, p95 = np.percentile(steps, (50, 95)).tolist() if steps.size else (None, None)
    return {
        "host": log.host,
        "has_ended": log.has_ended,
        "outcome": (log.info.get("summary") or {}).get("outcome"),
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
    ranks: Mapping[int, RankLog],
    rows: Mapping[int, RankRow],
    trained: Sequence[int],
    step_ns: float,
) -> Straggler:
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
    found: Straggler = {"known": True, "by": "arrival", "rank": None, "steps": late["steps"]}
    if (mostly := late["mostly"]) is not None:
        found["mostly"], found["mostly_ns"] = trained[mostly], late["held_up_ns"][mostly]
        found["rest_ns"] = sum(late["held_up_ns"]) - late["held_up_ns"][mostly]
    if (other := late["at_times"]) is not None:
        found["at_times"], found["at_times_ns"] = trained[other], late["at_times_ns"]
    if (worst := late["straggler"]) is not None:
        found["held_up_ns"] = late["held_up_ns"][worst]
        found["most_ratio"] = late["most_ratio"][worst]
        found["rank"] = trained[worst]
    return found


def _clocks_differ(clocks_ns: Sequence[int | None], step_ns: float) -> bool:
    """Whether the clocks of ranks are apart by more than nobody would take for a wait.

    Containers of several nodes may have one name, and time namespaces have clocks of their own.
    Nodes keep one wall clock, but not the moment at which they booted.
    """
    known = [clock for clock in clocks_ns if clock is not None]
    return bool(known) and max(known) - min(known) > max(_READING_NS, _APART_RATIO * step_ns)


def _is_news(waiting: Straggler, rows: Mapping[int, RankRow], trained: Sequence[int]) -> bool:
    """Whether ranks wait for one in what no record of all ranks tells, as messages between two."""
    if waiting["rank"] is None:
        return False
    others = (rows[number]["arrival_wait_ns"] for number in trained if number != waiting["rank"])
    return min(ns or 0.0 for ns in others) < COVERAGE * waiting["held_up_ns"]


def _by_waiting(
    ranks: Mapping[int, RankLog],
    rows: Mapping[int, RankRow],
    trained: Sequence[int],
    step_ns: float,
    why: str | None,
) -> Straggler:
    """By the means of steps, and by their medians: a rank that stalls once is no straggler.

    `why` is why arrivals do not tell.
    """
    waits = [ns for number in trained if (ns := rows[number]["wait_ns"]) is not None]
    if len(waits) < len(trained):
        return _unknown(f"{why}, {_UNMEASURED}")
    found: Straggler = {"known": True, "by": "waiting", "rank": None, "steps": 0}
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
        found["rank"], found["held_up_ns"] = trained[index], min(mean for mean, _ in pairs)
    return found


def _waited_more(late: RankLog, other: RankLog, common: CommonSteps) -> tuple[float, float]:
    """How much longer than one rank another waited in a step of both, mean and median."""
    more = other.metric(_WAIT)[common.there] - late.metric(_WAIT)[common.here]
    more = more[np.isfinite(more)]
    return (float(more.mean()), float(np.median(more))) if more.size else (0.0, 0.0)
