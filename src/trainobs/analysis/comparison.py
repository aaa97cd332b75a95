"""Two sides, each of one run or of several equal ones: is one faster, by how much, and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from trainobs.analysis import no_steps
from trainobs.analysis.changes import OTHERS, changes, mixed, others_share, predicted
from trainobs.analysis.conditions import conditions
from trainobs.analysis.observed import observed_by
from trainobs.analysis.part_means import (
    ENOUGH_STEPS,
    Means,
    Part,
    RunMeans,
    causes_known,
    not_in_all,
    parts_of,
)
from trainobs.analysis.step_kinds import unlike
from trainobs.analysis.step_work import SAME_WORK, StepWork, WorkRatio, work_of, work_ratio
from trainobs.analysis.stored import go_back, gone, missing_steps, rows_at_odds
from trainobs.analysis.summary import summarize
from trainobs.analysis.welch import Estimate, estimate, half_width, relative
from trainobs.core.errors import TrainobsError, shown
from trainobs.core.labels import LABELS, label_of
from trainobs.core.records import SETUP
from trainobs.core.text import counted
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import STEPS
from trainobs.verdict.metric_names import LOADER, STEP

CONFIDENCE = 0.95

LEAST = 0.005
"""Of the step: a difference is named if its whole interval lies beyond this."""

EQUAL_RUNS = 0.08
"""How far the steps of two equal runs lie apart on a quiet machine, as a share: 1.96 * sqrt(2)
times the spread of 2.9 % that was measured (docs/compare.md). Only more runs of the same would
tell how far it is for those at hand."""

UNKNOWN_SHARE = 0.25
"""Of the CPUs, taken by others: assumed of a run that does not tell. Of pairs of equal single runs
on a busy machine 5 % were called different with a doubt of this size, and 17 to 20 % without."""

_MOST_DOUBT = 0.99
"""Share of the time of a step by which it may be too long, at most: without what others took of the
CPUs, a step may have been a hundred times as fast."""

_SIDES = ("A", "B")


def compare(old: Sequence[RunLog], new: Sequence[RunLog]) -> dict[str, Any]:
    """Compare runs, `old` (A) with `new` (B); of each run its lowest rank.

    Returns:
        A dictionary that `json.dumps` takes. A pair [a, b] is the mean over the runs of A, and
        over those of B; what is unknown is None; times are ns per step. Its keys:

        * answer: of B, "faster" or "slower"; "none" where the interval holds no difference that is
          worth naming; "unknown" where there is no interval, and `why_unknown`.
        * step_ns: pair: mean of all steps but the first.
        * gain: how many times as fast B is: the ratio a / b of these, None where their steps are
          not the same thing; `gain_interval`: [low, high], which holds it at 95 %. `per`: "step";
          "sample" or "batch", and `work` says why, where their steps take different numbers of
          these: the gain is that of the time of one.
        * units: "runs", of which the interval was made, or "blocks" of consecutive steps where
          each side is one run. `these_runs`: [low, high] for just these two, without what equal
          runs differ by; None for several.
        * parts: of the step; each has `name` (of the metric), `label`, `ns` (pair),
          `difference_ns` (b - a), `interval_ns` ([low, high] of the difference; at 95 % all of
          them hold theirs), `claim` (whether it lies beyond what is worth naming), and `parts`,
          which add up to it. The parts add up to `step_ns`, and so do their differences.
        * conditions: under which they ran: `name`, `label`, `unit` ("ratio", "bytes" per step,
          ...) and `values` (pair).
        * changes: name -> [a, b], of settings that differ.
        * predicted: [least, most] gain of these changes by a replay of the first run of A, or None
          and `why_not`; `left_out`: what that leaves room for, in words, or None; `holds`: whether
          `gain` lies in it; None where the interval is wider.
        * runs: for "A" and "B" a list: `run` (directory), `steps`, `step_ns`, `rank`, `ranks`,
          `level`, `observed_by`, `outcome`, `unreadable` (file -> why).
        * notes: sentences on what else to know.

    Raises:
        TrainobsError: a side has no runs, a run was given twice, or has fewer than two steps.
    """
    sides = (old, new)
    _refuse(old, new)
    means = [[_means_of(run) for run in side] for side in sides]
    every = [*means[0], *means[1]]
    found = changes(old, new)
    others = [others_share(run) for run in (*old, *new)]
    is_in_turn = _are_in_turn(old, new)
    works = [[work_of(run) for run in side] for side in sides]
    work = work_ratio(*works)
    interval = Intervals(
        means, others, work, is_in_turn=is_in_turn, unlike=unlike(old, new) or work.unknown
    )
    gain, parts = interval.gain(), parts_of(every)
    prediction = predicted(old[0], found)
    return {
        **gain,
        "per": work.unit if gain["gain"] else "step",
        "work": (gain["gain"] and work.told) or None,
        "parts": list(interval.told(parts, _rows(parts))),
        "conditions": conditions(old, new),
        "changes": found,
        "predicted": prediction.gain,
        "why_not": prediction.why_not,
        "left_out": prediction.left_out,
        "holds": _holds(prediction.gain, gain["gain"], gain["gain_interval"]),
        "runs": {
            name: [_run(*one) for one in zip(side, own, strict=True)]
            for name, side, own in zip(_SIDES, sides, means, strict=True)
        },
        "notes": [*_notes(sides, works, means, found), *([_IN_TURN] if is_in_turn else [])],
    }


class Intervals:
    """How sure the means of two sides are, and so what they differ by.

    Args:
        sides: the runs of A and of B.
        others: share of the CPUs that other processes took of each run; None where unknown.
        work: how the steps of the sides differ in what they take.
        is_in_turn: whether all runs of one side came before those of the other, so that a machine
            that changes meanwhile looks like a difference.
        unlike: why their steps are not the same thing, so that no interval holds anything; "" if
            they are.
    """

    def __init__(
        self,
        sides: Sequence[Sequence[RunMeans]],
        others: Sequence[float | None],
        work: WorkRatio = SAME_WORK,
        *,
        is_in_turn: bool = False,
        unlike: str = "",
    ) -> None:
        self._sides = sides
        self._unlike = unlike
        self._work = work
        self._others = [UNKNOWN_SHARE if share is None else share for share in others]
        self._is_in_turn = is_in_turn
        self._alone = all(len(side) == 1 for side in sides)
        self._equal_runs = EQUAL_RUNS if self._alone or is_in_turn else 0.0
        self._equal_runs = math.nan if unlike else self._equal_runs
        steps = [one.of[STEP] for side in sides for one in side]
        self._step_ns = max(one.all for one in steps)
        self._a, self._b = self._estimates(steps)

    def gain(self) -> dict[str, Any]:
        """What is told of the whole step."""
        steps = [one.of[STEP] for side in self._sides for one in side]
        middle = math.log(self._a.mean / self._b.mean * self._work.ratio)
        within = half_width(relative(self._a), relative(self._b), CONFIDENCE)
        means = (self._a.mean, self._b.mean)
        shares = [ns / mean for ns, mean in zip(self._doubts(steps, means), means, strict=True)]
        doubts = [-math.log1p(-min(share, _MOST_DOUBT)) for share in shares]
        off = -math.log1p(-self._work.off)
        half = math.hypot(within, math.log1p(self._equal_runs), off, *doubts)
        low, high = math.exp(middle - half), math.exp(middle + half)
        within = math.hypot(within, off)
        alone = [math.exp(middle - within), math.exp(middle + within)]
        has_alone = self._alone and not math.isnan(within) and not self._unlike
        return {
            "answer": _answer(low, high),
            "why_unknown": self._why_unknown() if math.isnan(half) else None,
            "step_ns": [self._a.mean, self._b.mean],
            "gain": None if self._unlike else math.exp(middle),
            "gain_interval": None if math.isnan(half) else [low, high],
            "units": "blocks" if self._alone else "runs",
            "these_runs": alone if has_alone else None,
        }

    def told(self, parts: Sequence[Part], count: int) -> Iterator[dict[str, Any]]:
        """What is told of parts, whose intervals hold together with those of `count` in all."""
        least = LEAST * self._step_ns
        for part in parts:
            a, b = self._estimates(part.runs)
            half = half_width(a, b, 1 - (1 - CONFIDENCE) / count)
            doubts = self._doubts(part.runs, (a.mean, b.mean))
            half = math.hypot(half, self._equal_runs * self._step_ns, *doubts)
            low, high = b.mean - a.mean - half, b.mean - a.mean + half
            yield {
                "name": part.name,
                "label": part.label,
                "ns": [a.mean, b.mean],
                "difference_ns": b.mean - a.mean,
                "interval_ns": None if math.isnan(half) else [low, high],
                "claim": low > least or high < -least,
                "parts": list(self.told(part.parts, count)),
            }

    def _estimates(self, runs: Sequence[Means]) -> tuple[Estimate, Estimate]:
        count = len(self._sides[0])
        return self._estimate(runs[:count]), self._estimate(runs[count:])

    def _estimate(self, runs: Sequence[Means]) -> Estimate:
        if not self._alone:
            return estimate([one.all for one in runs])
        blocks = estimate(runs[0].blocks)
        if any(side[0].steps < ENOUGH_STEPS for side in self._sides):
            blocks = Estimate(math.nan, math.nan, 0)
        return blocks._replace(mean=runs[0].all)

    def _why_unknown(self) -> str:
        if self._unlike:
            return self._unlike
        steps = (f"{name} has {s[0].steps}" for name, s in zip(_SIDES, self._sides, strict=True))
        return f"it takes {ENOUGH_STEPS} steps after the first; {' and '.join(steps)}"

    def _doubts(self, runs: Sequence[Means], means: tuple[float, float]) -> tuple[float, float]:
        """How far the mean of each side may be off by what other processes took, ns.

        Without them its runs might have been as much faster as they took of the CPUs. In several
        runs of both sides by turns, they show in how far these lie apart. The mean of a single run
        is also no surer than half of what its halves differ by.
        """
        if not (self._alone or self._is_in_turn):
            return 0.0, 0.0
        count = len(self._sides[0])
        shares = (fmean(self._others[:count]), fmean(self._others[count:]))
        a, b = (share * mean for share, mean in zip(shares, means, strict=True))
        if self._alone:
            drifts = [float(one.halves[1] - one.halves[0]) / 2 for one in runs]
            a, b = math.hypot(drifts[0], a), math.hypot(drifts[1], b)
        return a, b


def _answer(low: float, high: float) -> str:
    if math.isnan(low):
        return "unknown"
    if low > 1 + LEAST:
        return "faster"
    return "slower" if high < 1 / (1 + LEAST) else "none"


def _rows(parts: Sequence[Part]) -> int:
    """Parts, and those of parts, that took any time."""
    taken = sum(any(one.all for one in part.runs) for part in parts)
    return taken + sum(_rows(part.parts) for part in parts)


def _holds(
    prediction: Sequence[float] | None, gain: float | None, interval: Sequence[float] | None
) -> bool | None:
    if prediction is None or gain is None or interval is None:
        return None
    if interval[1] < prediction[0] or interval[0] > prediction[1]:
        return False
    is_shown = interval[0] > 1.0 or interval[1] < 1.0  # else nothing came that could be told
    return True if is_shown and prediction[0] <= gain <= prediction[1] else None


def _refuse(old: Sequence[RunLog], new: Sequence[RunLog]) -> None:
    """Refuse what is no comparison."""
    for name, side in zip(_SIDES, (old, new), strict=True):
        if not side:
            raise _no_comparison(f"no run for {name}", "give at least one run for each side")
    seen: dict[object, RunLog] = {}
    for run in (*old, *new):
        identity = _identity(run)
        if identity in seen:
            paths = f"{shown(str(seen[identity].path))} and {shown(str(run.path))}"
            raise _no_comparison(f"{paths} are the same run", "give each run once")
        seen[identity] = run


def _identity(run: RunLog) -> object:
    """What no other run has, and copies of it have: when it began on its host."""
    clock = run.info["clock"]
    began = clock.get("wall_ns"), clock.get("monotonic_ns")
    host = run.info.get("host", {}).get("hostname")
    return str(run.path.resolve()) if None in began else (host, *began)


_IN_TURN = (
    "the runs of A and B did not alternate, or nobody knows when they were made: alternate them"
)


def _are_in_turn(old: Sequence[RunLog], new: Sequence[RunLog]) -> bool:
    """Whether several runs a side were made one side after the other, or nobody knows."""
    if len(old) == len(new) == 1:  # whatever their order
        return False
    a, b = ([run.info["clock"].get("wall_ns", 0) for run in side] for side in (old, new))
    return bool(max(a) <= min(b) or max(b) <= min(a))


def _means_of(run: RunLog) -> RunMeans:
    means = RunMeans.from_run(run)
    if not means.steps or means.of[STEP].all <= 0:
        found = f"{shown(str(run.path))} has fewer than two steps"
        if not (run.rank.step() != SETUP).any():
            found += f": {no_steps.reason(summarize(run), 'in its report').removesuffix('.')}"
        raise _no_comparison(found, "give runs that trained for a while")
    return means


def _no_comparison(found: str, do: str) -> TrainobsError:
    return TrainobsError(failed="The runs cannot be compared.", found=found, do=do)


def _run(run: RunLog, means: RunMeans) -> dict[str, Any]:
    return {
        "run": str(run.path),
        "steps": means.steps,
        "step_ns": means.of[STEP].all,
        "rank": run.rank.rank,
        "ranks": len(run.ranks),
        "level": run.info.get("level"),
        "observed_by": observed_by(run.info.get("level"), run.info.get("capabilities")),
        "outcome": (run.info.get("summary") or {}).get("outcome"),
        "unreadable": {str(path): why for path, why in run.unreadable.items()},
    }


def _notes(
    sides: Sequence[Sequence[RunLog]],
    works: Sequence[Sequence[StepWork]],
    means: Sequence[Sequence[RunMeans]],
    found: Mapping[str, Sequence[Any]],
) -> Iterator[str]:
    """What else to know, most important first."""
    if OTHERS in found:
        more = _SIDES[found[OTHERS][1] > found[OTHERS][0]]
        yield f"other processes took more of the CPUs of {more}: a difference may be theirs"
    every = [run for side in sides for run in side]
    if any(work.has_loaders and work.batches is None for side in works for work in side):
        yield "how many batches a step has is not known of all runs: it is taken to be the same"
    for run in every:
        if go_back(run, run.rank) or STEPS in rows_at_odds(run, run.rank):
            yield f"steps of {run.path} are there twice, or those of another run: trust no number"
        yield from _lost(run)
    if any(len(run.ranks) > 1 for run in every):
        yield "of each run its lowest rank is compared"
    for name, side in zip(_SIDES, sides, strict=True):
        if names := mixed(side):
            yield f"the runs of {name} are taken as equal, but differ in {', '.join(names)}"
    yield from _unknown(means)


def _lost(run: RunLog) -> Iterator[str]:
    """What files of a run are gone or cannot be read, and whether steps are missing for that."""
    missing, own = missing_steps(run, run.rank), run.rank.files
    if missing:
        yield f"{counted(missing, 'step')} of {run.path} {'is' if missing == 1 else 'are'} missing"
    elif missing is None or own.unreadable(STEPS).keys() - set(own[STEPS]):
        yield f"steps of {run.path} may be missing: files of steps are gone or cannot be read"
    if files := {*run.unreadable, *gone(run, run.rank)}:
        yield f"files of {run.path} that are gone or cannot be read: {len(files)}"


def _unknown(means: Sequence[Sequence[RunMeans]]) -> Iterator[str]:
    """What is known of one side alone, so that it cannot be compared."""
    every = [run for side in means for run in side]
    for name in not_in_all(every):
        who = _those(means, lambda run, name=name: name in run.of)  # type: ignore[misc]
        yield f"{label_of(name)} is marked in {who} alone, and so is within everything else here"
    if any(map(causes_known, every)) and not all(map(causes_known, every)):
        yield f"what {LABELS[LOADER]} was for is known of {_those(means, causes_known)} alone"


def _those(means: Sequence[Sequence[RunMeans]], has: Callable[[RunMeans], bool]) -> str:
    sides = [name for name, side in zip(_SIDES, means, strict=True) if all(map(has, side))]
    return sides[0] if sides else "some of the runs"
