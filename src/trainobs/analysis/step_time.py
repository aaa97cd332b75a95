"""The one time of a step that is told, and its parts: those that verdicts go by."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from trainobs.core.catalogue.named import named_phase
from trainobs.core.records import SETUP
from trainobs.runlog.rank import RankLog
from trainobs.verdict.facts import Facts
from trainobs.verdict.metric_names import LOADER, NAMED, PHASES, SPLIT, START, STEP, WAITED_OFF_CPU
from trainobs.verdict.parts import parts_of
from trainobs.verdict.summed_steps import SummedSteps
from trainobs.verdict.verdict import VerdictKind

TAKING = "loader/taking_ns"
"""What taking over any batch costs the training thread: verdicts do not call it waiting."""

LONG_SHARE, LONG_TIMES = 0.1, 2.0
"""Share of the time of all steps, and times as long as the others on average, from which on the
first step is told of, though all numbers are without it: a compiler, workers, caches. And the last
one, in which a run failed: it may have waited for a rank that was gone until a timeout."""

_FAILED = ("exception: ", "closed while handling ")
"""How outcomes of runs begin that an exception ended."""


class FirstStep(TypedDict):
    """The step that others are told without.

    Attributes:
        first_is_out: whether it is left out.
        first_ns, first_share: what it took, also of the time of all; None where unknown.
        first_is_long: whether that is worth telling.
    """

    first_is_out: bool
    first_ns: float | None
    first_share: float | None
    first_is_long: bool


class StepTime(FirstStep):
    """How long a step took.

    Attributes:
        failed_ns, failed_share: what the last one took, where an exception ended the run, also of
            the time of all; None where none did, or that is not worth telling.
        steps: how many it is of.
        mean_ns, p95_ns, max_ns: of these.
        parts: metric of a phase -> its time in a step, over all of these steps, with the part of
            the wait for the loader that is `TAKING` by itself, if that is known. What is unknown in
            all steps is left out.
        waited: the same of what the loader was waited for, where that is known; a step that does
            not know it leaves its wait unexplained.
    """

    failed_ns: float | None
    failed_share: float | None
    steps: int
    mean_ns: float
    p95_ns: float
    max_ns: float
    parts: dict[str, float]
    waited: dict[str, float]


class NewestStep(TypedDict):
    """The last step of a log: its number, and when it ended, since 1970; None where unknown."""

    number: int
    wall_ns: int | None


def step_time(rank: RankLog, summed: SummedSteps, facts: Facts) -> StepTime | None:
    """How long a step took; None where no step was timed.

    Args:
        rank: the rank.
        summed: its steps, as verdicts take them.
        facts: of the run.
    """
    if not len(summed):
        return None
    mean = summed.mean()
    all_steps = rank.metric(STEP)[rank.step() != SETUP]
    durations = all_steps[-len(summed) :]
    durations = durations[np.isfinite(durations)]
    if not durations.size:
        return None
    took, share = _failed(rank, all_steps) or (None, None)
    return {
        "steps": len(summed),
        **_first(all_steps[: -len(summed)], durations),
        "failed_ns": took,
        "failed_share": share,
        "mean_ns": mean[STEP],
        "p95_ns": float(np.percentile(durations, 95)),
        "max_ns": float(durations.max()),
        "parts": _parts(mean, facts),
        "waited": _known(mean, (*SPLIT, START)),
    }


def _first(left_out: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> FirstStep:
    """What the step took that is left out, if one is and it was timed."""
    took = float(left_out[0]) if left_out.size and np.isfinite(left_out[0]) else None
    share = None if took is None else took / max(1.0, took + float(others.sum()))
    is_long = took is not None and took >= LONG_TIMES * float(others.mean())
    return {
        "first_is_out": bool(left_out.size),
        "first_ns": took,
        "first_share": share,
        "first_is_long": is_long and (share or 0.0) >= LONG_SHARE,
    }


def _failed(rank: RankLog, steps: npt.NDArray[np.float64]) -> tuple[float, float] | None:
    """What the last of some steps took, and its share, if a failure drew it out."""
    outcome = (rank.info.get("summary") or {}).get("outcome") or ""
    others, took = steps[:-1][np.isfinite(steps[:-1])], float(steps[-1])
    is_known = outcome.startswith(_FAILED) and others.size and np.isfinite(took)
    if not is_known or took <= LONG_TIMES * others.mean():
        return None
    share = took / (took + float(others.sum()))
    return (took, share) if share >= LONG_SHARE else None


def _parts(mean: Mapping[str, float], facts: Facts) -> dict[str, float]:
    named = tuple(name for name in mean if named_phase(name))
    parts = _known(mean, (*(name for name in PHASES if name != NAMED), *named))
    if LOADER in parts and not isnan(mean[WAITED_OFF_CPU]):
        waited = parts_of(mean, facts).part[VerdictKind.LOADER]
        parts |= {LOADER: waited, TAKING: parts[LOADER] - waited}
    return parts


def newest_step(rank: RankLog, info: Mapping[str, Any]) -> NewestStep | None:
    """The last step of the log; None where there is none."""
    steps = rank.step()
    if not steps.size or steps[-1] == SETUP:
        return None
    clock, took = info.get("clock", {}), rank.last(STEP)
    known = {"wall_ns", "monotonic_ns"} <= clock.keys() and not isnan(took)
    ended = int(rank.last("start_ns")) + int(took) if known else 0
    wall = clock["wall_ns"] - clock["monotonic_ns"] + ended if known else None
    return {"number": int(steps[-1]), "wall_ns": wall}


def _known(mean: Mapping[str, float], names: tuple[str, ...]) -> dict[str, float]:
    return {name: mean[name] for name in names if not isnan(mean[name])}
