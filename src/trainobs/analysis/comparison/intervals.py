"""How sure the means of two sides of runs are, and so what they differ by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import TypedDict

from trainobs.analysis.comparison.part_means import ENOUGH_STEPS, Means, Part, RunMeans
from trainobs.analysis.comparison.step_work import SAME_WORK, WorkRatio
from trainobs.analysis.comparison.welch import Estimate, estimate, half_width, relative
from trainobs.verdict.metric_names import STEP

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

SIDES = ("A", "B")


class Gain(TypedDict):
    """What is told of the whole step; a pair is of A and B, ns per step.

    Attributes:
        answer: of B, "faster" or "slower"; "none" where the interval holds no difference that is
            worth naming; "unknown" where there is no interval, and `why_unknown`.
        step_ns: pair: mean of all steps but the first.
        gain: how many times as fast B is: the ratio a / b of these, None where their steps are not
            the same thing.
        gain_interval: low and high, which hold it at 95 %.
        units: "runs", of which the interval was made, or "blocks" of consecutive steps where each
            side is one run.
        these_runs: low and high for just these two, without what equal runs differ by; None for
            several.
    """

    answer: str
    why_unknown: str | None
    step_ns: list[float]
    gain: float | None
    gain_interval: list[float] | None
    units: str
    these_runs: list[float] | None


class PartDifference(TypedDict):
    """A part of the step; its own parts add up to it, and those of the step to `step_ns`.

    Attributes:
        name: of the metric.
        ns: pair.
        difference_ns: b - a.
        interval_ns: low and high of the difference; at 95 % all of them hold theirs.
        claim: whether it lies beyond what is worth naming.
    """

    name: str
    label: str
    ns: list[float]
    difference_ns: float
    interval_ns: list[float] | None
    claim: bool
    parts: list[PartDifference]


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

    def gain(self) -> Gain:
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

    def told(self, parts: Sequence[Part], count: int) -> Iterator[PartDifference]:
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
        steps = (f"{name} has {s[0].steps}" for name, s in zip(SIDES, self._sides, strict=True))
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
