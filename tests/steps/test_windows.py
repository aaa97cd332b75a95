"""What was measured over windows, overlaid on steps."""

from __future__ import annotations

import math

import pytest

from tests.steps.test_timeline import steps
from trainobs.steps.windows import Windows

SECOND = 1_000_000_000


@pytest.fixture
def windows() -> Windows:
    """One level and one amount."""
    return Windows(["level"], ["amount"], fresh_ns=SECOND)


def test_a_window_weighs_with_the_time_that_it_shares_with_the_step(windows):
    windows.add(0, 10, (1, 0))
    windows.add(10, 20, (4, 0))
    windows.add(20, 30, (7, 0))
    columns = windows.columns(steps(5, 20, 22, 30))
    assert columns["level"].tolist() == [(5 * 1 + 10 * 4) / 15, 7, 7]


def test_an_amount_is_the_rate_times_the_length_of_the_step(windows):
    windows.add(0, SECOND, (0, 100))
    windows.add(SECOND, 2 * SECOND, (0, 300))
    columns = windows.columns(steps(0, SECOND // 2, 2 * SECOND))
    assert columns["amount"].tolist() == pytest.approx([50, (50 + 300) / 1.5 * 1.5])


def test_a_step_after_the_last_window_has_it_as_long_as_it_is_fresh(windows):
    windows.add(0, 10, (1, 0))
    columns = windows.columns(steps(10, 10 + SECOND, 11 + SECOND))
    assert columns["level"][0] == 1
    assert math.isnan(columns["level"][1])
    assert math.isnan(columns["amount"][1])


def test_a_window_serves_steps_that_are_asked_for_later_as_well(windows):
    windows.add(0, 100, (1, 0))
    windows.add(100, 200, (3, 0))
    assert windows.columns(steps(0, 50))["level"].tolist() == [1]
    assert windows.columns(steps(50, 150))["level"].tolist() == [2]
    assert windows.columns(steps(150, 200, 300))["level"].tolist() == [3, 3]


def test_what_one_window_does_not_know_is_taken_from_the_others(windows):
    windows.add(0, 10, (math.nan, 0))
    windows.add(10, 20, (4, math.nan))
    windows.add(20, 30, (math.nan, math.nan))
    columns = windows.columns(steps(0, 20, 30))
    assert columns["level"][0] == 4
    assert columns["amount"][0] == 0
    assert math.isnan(columns["level"][1])


def test_without_any_window_there_is_no_column_unless_some_are_to_come(windows):
    assert windows.columns(steps(0, 10)) == {}
    windows.live = True
    assert math.isnan(windows.columns(steps(0, 10))["level"][0])


def test_a_step_is_ready_when_its_end_is_covered_or_nothing_more_comes(windows):
    (step,) = steps(0, 10)
    assert windows.ready(step)
    windows.live = True
    windows.add(0, 9, (1, 0))
    assert not windows.ready(step)
    windows.add(9, 10, (1, 0))
    assert windows.ready(step)
