"""What happened at times of its own, overlaid on steps."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from trainobs.steps.closed_step import ClosedStep
from trainobs.steps.timeline import Gauges, Spans, Totals


def steps(*edges: int) -> list[ClosedStep]:
    """Steps between each pair of neighbouring edges."""
    return [
        ClosedStep.from_numbers(i, i, (start, end))
        for i, (start, end) in enumerate(pairwise(edges))
    ]


def test_a_span_counts_in_the_step_in_which_it_ends():
    spans = Spans("t", "n")
    for end, duration in ((5, 5), (10, 1), (19, 2), (19, 4), (30, 1)):
        spans.add(end, duration)
    columns = spans.columns(steps(0, 10, 20, 30))
    assert columns["t"].tolist() == [5, 7, 0]
    assert columns["n"].tolist() == [1, 3, 0]
    assert spans.columns(steps(30, 40))["t"].tolist() == [1]
    assert spans.columns(steps(40, 50))["n"].tolist() == [0]


def test_a_span_that_was_added_late_is_not_lost():
    spans = Spans("t", "n")
    spans.columns(steps(0, 10))
    spans.add(9, 3)
    assert spans.columns(steps(10, 20, 30))["t"].tolist() == [3, 0]


def test_a_gauge_is_the_mean_of_the_readings_inside_the_step():
    gauges = Gauges(("a", "b"), fresh_ns=100)
    for at, a, b in ((1, 1.0, 5.0), (2, 3.0, math.nan), (11, 7.0, math.nan)):
        gauges.add(at, (a, b))
    columns = gauges.columns(steps(0, 10, 20))
    np.testing.assert_array_equal(columns["a"], [2, 7])
    np.testing.assert_array_equal(columns["b"], [5, math.nan])


@pytest.mark.parametrize("apart", [False, True], ids=["together", "one by one"])
def test_the_last_reading_stands_until_it_is_too_old(apart):
    gauges = Gauges(("a",), fresh_ns=20)
    gauges.add(5, (4.0,))
    all_steps = steps(0, 10, 20, 30, 40)
    parts = [[step] for step in all_steps] if apart else [all_steps]
    values = np.concatenate([gauges.columns(part)["a"] for part in parts])
    np.testing.assert_array_equal(values, [4, 4, math.nan, math.nan])


def test_before_the_first_reading_nothing_is_known():
    gauges = Gauges(("a",), fresh_ns=20)
    assert np.isnan(gauges.columns(steps(0, 10))["a"]).all()
    gauges.add(15, (2.0,))
    np.testing.assert_array_equal(gauges.columns(steps(10, 12, 20))["a"], [math.nan, 2])


def test_memory_is_bounded_when_nobody_asks():
    spans, gauges = Spans("t", "n"), Gauges(("a",), 10)
    for at in range(70_000):
        spans.add(at, 1)
        gauges.add(at, (1.0,))
    assert spans.columns(steps(0, 70_000))["n"].tolist() == [65_536]
    assert gauges.columns(steps(0, 70_000))["a"].tolist() == [1]


def test_growth_is_laid_evenly_between_two_readings():
    totals = Totals(("a", "b"))
    for at, a, b in ((0, 100, 7), (20, 120, 7), (40, 220, 9)):
        totals.add(at, (a, b))
    columns = totals.columns(steps(0, 10, 20, 30, 40))
    assert columns["a"].tolist() == [10, 10, 50, 50]
    assert columns["b"].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("apart", [False, True], ids=["together", "one by one"])
def test_every_step_has_a_whole_number_and_nothing_is_lost(apart):
    totals = Totals(("a",))
    totals.add(0, (0.0,))
    totals.add(100, (7.0,))
    all_steps = steps(*range(0, 101, 5))
    parts = [[step] for step in all_steps] if apart else [all_steps]
    values = np.concatenate([totals.columns(part)["a"] for part in parts])
    assert set(values.tolist()) == {0.0, 1.0}
    assert values.sum() == 7


def test_growth_after_the_last_reading_counts_in_later_steps():
    totals = Totals(("a",))
    totals.add(0, (5.0,))
    assert totals.columns(steps(0, 10, 20))["a"].tolist() == [0, 0]
    totals.add(40, (13.0,))
    assert totals.columns(steps(20, 30, 40, 50))["a"].tolist() == [6, 2, 0]
    assert totals.columns(steps(50, 60))["a"].tolist() == [0]


def test_what_may_have_ended_the_steps_counts_in_the_last_of_them():
    totals = Totals(("a", "b"), ending=("b",))
    totals.add(0, (0.0, 0.0))
    totals.add(19, (0.0, 1.0))
    totals.add(21, (2.0, 2.0))
    columns = totals.columns(steps(0, 10, 20))
    assert (columns["a"].tolist(), columns["b"].tolist()) == ([0, 1], [0, 2])
    totals.add(40, (2.0, 3.0))
    assert totals.columns(steps(20, 21, 30, 40))["b"].tolist() == [0, 0, 1]


def test_before_the_first_reading_of_a_counter_nothing_is_known():
    totals = Totals(("a",))
    assert np.isnan(totals.columns(steps(0, 10))["a"]).all()
    totals.add(10, (50.0,))  # what came before is none of ours
    assert totals.columns(steps(10, 20))["a"].tolist() == [0]
