"""Do the intervals of a comparison hold what they say? Simulated runs, whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import scipy  # `scipy.signal` takes a second to import: only where it is used

from trainobs.analysis.comparison.intervals import Intervals
from trainobs.analysis.comparison.part_means import RunMeans
from trainobs.analysis.comparison.welch import estimate, half_width, relative
from trainobs.verdict.metric_names import STEP

PAIRS = 400
HELD = 0.95 - 2.5 * math.sqrt(0.95 * 0.05 / PAIRS)
"""What 95 % is at least in so many pairs, but for one chance in a hundred."""


def steps_of(
    random: np.random.Generator,
    steps: int,
    *,
    after: float = 0.3,
    every: int = 4,
    between: float = 0.0,
    factor: float = 1.0,
) -> np.ndarray:
    """Steps that hang together, wait for a loader in turn, and are slow now and then.

    Args:
        random: where chance comes from.
        steps: how many.
        after: correlation of a step with the one before.
        every: steps from one that waits for the loader to the next.
        between: spread of runs.
        factor: on all steps.
    """
    fresh = math.sqrt(1 - after**2) * random.normal(size=steps)
    noise, _ = scipy.signal.lfilter([1.0], [1.0, -after], fresh, zi=[after * random.normal()])
    times = 1e7 * factor * np.exp(0.05 * noise + between * random.normal())
    times[random.integers(every) :: every] *= 2
    times[random.random(steps) < 0.01] *= 3
    return times


def pairs(a_side: int, steps: int, factor: float = 1.0, **kind: float) -> Iterator[dict]:
    """What is told of pairs of sides, B's steps being `factor` times as long."""
    random = np.random.default_rng(5)
    for _ in range(PAIRS):
        sides = [
            [
                RunMeans({STEP: steps_of(random, steps, factor=of_side, **kind)})
                for _ in range(a_side)
            ]
            for of_side in (1.0, factor)
        ]
        yield Intervals(sides, [0.0] * 2 * a_side).gain()


def share(found: Iterator[dict], holds: Callable[[dict], bool]) -> float:
    return sum(map(holds, found)) / PAIRS


def holds_no_difference(interval: list[float]) -> bool:
    return interval[0] <= 1 <= interval[1]


@pytest.mark.parametrize("kind", [{"after": 0}, {"after": 0.5}, {"every": 7}, {"every": 50}])
def test_the_interval_of_two_runs_holds_their_ratio(kind):
    found = pairs(1, 160, **kind)
    assert share(found, lambda one: holds_no_difference(one["these_runs"])) >= HELD


def test_steps_taken_as_independent_would_not_hold_it():
    random = np.random.default_rng(5)
    held = 0
    for _ in range(PAIRS):
        a, b = (relative(estimate(steps_of(random, 160, after=0.9, every=200))) for _ in "AB")
        held += abs(a.mean - b.mean) <= half_width(a, b, 0.95)
    assert held / PAIRS < 0.9


def test_single_runs_that_differ_by_chance_are_not_called_different():
    found = list(pairs(1, 160, after=0.9, between=0.02))
    assert share(iter(found), lambda one: one["answer"] != "none") <= 1 - HELD
    assert share(iter(found), lambda one: not holds_no_difference(one["these_runs"])) > 0.1


@pytest.mark.parametrize("between", [0.0, 0.03, 0.2])
def test_the_interval_of_several_runs_holds_that_of_all_such_runs(between):
    found = list(pairs(3, 60, between=between))
    assert share(iter(found), lambda one: holds_no_difference(one["gain_interval"])) >= HELD
    assert share(iter(found), lambda one: one["answer"] != "none") <= 1 - HELD


def test_a_true_difference_is_found_and_its_size_is_held():
    found = list(pairs(3, 60, factor=1.25, between=0.02))
    assert share(iter(found), lambda one: one["answer"] == "slower") > 0.9
    assert share(iter(found), lambda one: holds_ratio(one["gain_interval"], 0.8)) >= HELD


def holds_ratio(interval: list[float], truth: float) -> bool:
    return interval[0] <= truth <= interval[1]


def test_what_others_took_and_what_halves_differ_by_widen_the_interval_of_single_runs():
    times = np.full(100, 1e7)
    drifting = times * np.repeat([1.0, 1.4], 50)
    even, slow = ([RunMeans({STEP: values})] for values in (times, 1.2 * times))
    assert Intervals([slow, even], [0.0, 0.0]).gain()["answer"] == "faster"
    assert Intervals([slow, even], [0.3, 0.0]).gain()["answer"] == "none"
    assert Intervals([slow, even], [0.0, None]).gain()["answer"] == "none"
    assert Intervals([[RunMeans({STEP: drifting})], even], [0.0, 0.0]).gain()["answer"] == "none"


def test_a_difference_that_is_too_small_to_name_is_not_named():
    exact = [[RunMeans({STEP: np.full(50, ns)}) for _ in "123"] for ns in (1e7, 1.003e7)]
    assert Intervals(exact, [0.0] * 6).gain()["answer"] == "none"
    exact[1] = [RunMeans({STEP: np.full(50, 1.02e7)}) for _ in "123"]
    assert Intervals(exact, [0.0] * 6).gain()["answer"] == "slower"


def test_a_few_steps_give_no_interval():
    few = [RunMeans({STEP: np.full(8, 1e7)})]
    found = Intervals([few, few], [0.0, 0.0]).gain()
    assert (found["answer"], found["gain_interval"]) == ("unknown", None)
    assert "20 steps after the first; A has 8 and B has 8" in found["why_unknown"]


def test_runs_made_one_side_after_the_other_are_doubted_as_single_ones_are():
    times = ((100.0, 101.0, 99.0), (93.0, 94.0, 92.0))
    sides = [[RunMeans({STEP: np.full(50, ns)}) for ns in side] for side in times]
    assert Intervals(sides, [0.0] * 6).gain()["answer"] == "faster"
    assert Intervals(sides, [0.0] * 6, is_in_turn=True).gain()["answer"] == "none"


def test_what_others_took_widens_the_interval_of_several_runs_one_side_after_the_other():
    sides = [[RunMeans({STEP: np.full(50, ns)}) for _ in "123"] for ns in (1.3e7, 1e7)]
    busy = [0.4] * 3 + [0.2] * 3
    assert Intervals(sides, busy).gain()["answer"] == "faster"
    assert Intervals(sides, [0.0] * 6, is_in_turn=True).gain()["answer"] == "faster"
    assert Intervals(sides, busy, is_in_turn=True).gain()["answer"] == "none"
