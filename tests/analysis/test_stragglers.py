"""Who comes last, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from trainobs.analysis.ranks.stragglers import by_waiting, lateness, meetings, too_long

MS = 1_000_000


def arrivals(*times: int, group: int = 0) -> dict[tuple[int, int], int]:
    return {(group, seq): at for seq, at in enumerate(times)}


def test_ranks_meet_where_nobody_goes_on_before_the_last_has_come():
    met = meetings([arrivals(10, 40, 70), arrivals(30, 41, 72)])
    assert met.tolist() == [[10, 30], [40, 41]]  # of the last nobody knows


def test_a_collective_behind_which_a_rank_goes_on_is_no_meeting():
    # Rank 0 comes to the next one at 20, before rank 1 has come to the first at 30.
    met = meetings([arrivals(10, 20, 70), arrivals(30, 41, 72)])
    assert met.tolist() == [[20, 41]]


def test_only_what_every_rank_recorded_counts_and_groups_are_apart():
    first = arrivals(10, 40, 70) | arrivals(15, 45, group=1)
    second = {(0, 1): 41, (0, 2): 72, (1, 0): 16, (1, 1): 44, (2, 0): 3}
    assert meetings([first, second]).tolist() == [[40, 41], [15, 16]]
    assert meetings([first, {}]).shape == (0, 2)
    assert meetings([]).shape == (0, 0)


def steps_of(late: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """One meeting a step of 100 ms, to which the ranks come late by so many ms."""
    at = np.array(late) * MS
    starts = (np.arange(len(late)) + 1) * 100 * MS
    return (starts[:, None] + 50 * MS + at).astype(np.int64), starts


def test_the_rank_that_the_others_wait_for_is_found_with_what_it_costs():
    late = lateness(*steps_of([[0, 30, 2], [1, 25, 0], [0, 35, 5], [3, 30, 0]]), 100 * MS)
    assert late == {
        "steps": 4,
        "most_ratio": [0, 1, 0],
        "wait_ns": [29 * MS, 0, 28.25 * MS],
        "held_up_ns": [0, 27.25 * MS, 0],
        "straggler": 1,
        "mostly": None,
        "at_times": None,
        "at_times_ns": 0.0,
    }


def test_a_rank_that_is_late_in_most_steps_costs_no_more_than_the_mean():
    late = lateness(*steps_of([[0, 60], [0, 60], [0, 60], [0, 0]]), 100 * MS)
    assert (late["straggler"], late["held_up_ns"]) == (1, [0, 45 * MS])


def test_a_stall_does_not_add_to_what_a_straggler_costs():
    late = lateness(*steps_of([[0, 30], [0, 30], [0, 30], [0, 9000]]), 100 * MS)
    assert (late["straggler"], late["held_up_ns"]) == (1, [0, 30 * MS])


@pytest.mark.parametrize(
    ("late", "at_times"),
    [
        ([[90, 0], *[[0, 2]] * 4] * 5, 0),  # in every fifth step, as a validation
        ([[90, 0], *[[0, 12]] * 4] * 5, None),  # the other adds up to half as much
        ([[0, 2]] * 20 + [[2000, 0]] * 2, None),  # it stalled twice
        ([[90, 0], *[[0, 0]] * 4] * 5 + [[0, 2000]], None),  # the other stalled for longer
        ([[90, 0], *[[0, 0]] * 4] * 2 + [[0, 0]] * 20, None),  # so little in the mean
        ([[40, 0], [0, 40]] * 10, None),  # in turn
    ],
)
def test_a_rank_that_is_late_in_some_steps_is_told_beside_the_straggler(late, at_times):
    found = lateness(*steps_of(late), 100 * MS)
    assert (found["straggler"], found["at_times"]) == (None, at_times)
    assert found["at_times_ns"] == (0 if at_times is None else 18 * MS)


def test_another_rank_than_the_straggler_may_cost_more_in_the_mean():
    late = lateness(*steps_of([[900, 0], [900, 0], *[[0, 15]] * 18]), 100 * MS)
    assert (late["straggler"], late["at_times"]) == (1, None)  # it stalled twice
    late = lateness(*steps_of([[900, 0], *[[0, 15]] * 4] * 4), 100 * MS)
    assert (late["straggler"], late["at_times"], late["at_times_ns"]) == (1, 0, 180 * MS)


@pytest.mark.parametrize(("longer_ms", "at_times"), [(900, 0), (60, None)])
def test_a_straggler_may_cost_far_more_in_the_mean(longer_ms, at_times):
    """As one that is late in each step, and validates alone after every fifth."""
    late = lateness(*steps_of([[longer_ms, 0], *[[20, 0]] * 4] * 5), 100 * MS)
    assert (late["straggler"], late["held_up_ns"]) == (0, [20 * MS, 0])
    assert (late["at_times"], late["at_times_ns"]) == (
        at_times,
        0 if at_times is None else 196 * MS,
    )


def test_a_rank_that_is_last_in_most_steps_is_told_where_the_others_are_waited_for_as_well():
    """As of FSDP, whose ranks meet many times in a step: each is late to some of it."""
    met, starts = steps_of([[0, 40], [0, 40], [0, 40], [0, 90], [0, 90]] * 4)
    met = np.concatenate([met, met[:, :1] + np.array([32, 20]) * MS])
    late = lateness(met, starts, 100 * MS)
    assert (late["straggler"], late["mostly"]) == (None, 1)
    assert late["held_up_ns"] == [12 * MS, 40 * MS]
    assert late["at_times"] is None  # though it has most of the mean


def test_what_ranks_that_meet_every_fourth_step_wait_is_told_of_a_step():
    starts = (np.arange(16) + 1) * 100 * MS
    at = starts[::4, None] + 50 * MS + np.array([0, 200, 10]) * MS
    late = lateness(at.astype(np.int64), starts, 100 * MS)
    often = 4 / 13  # from the first step with a meeting to the last
    assert late["straggler"] == 1
    assert late["held_up_ns"] == pytest.approx([0, 190 * MS * often, 0])
    assert late["wait_ns"] == pytest.approx([200 * MS * often, 0, 190 * MS * often])


@pytest.mark.parametrize(
    "late",
    [
        [[0, 9], [0, 9], [0, 9], [0, 9]],  # always last, by less than a tenth
        [[0, 40], [40, 0], [0, 40], [40, 0]],  # far apart, in turn
        [[0, 40], [40, 0], [0, 40], [40, 0], [0, 40]],  # the same, one more often by chance
        [[0, 40, 40], [0, 40, 40], [0, 40, 40], [0, 40, 40]],  # two are late together
        [[0, 9], [0, 900], [3, 0], [2, 0]],  # stalled once
    ],
)
def test_who_is_last_by_little_or_in_turn_is_no_straggler(late):
    assert lateness(*steps_of(late), 100 * MS)["straggler"] is None


def test_the_meetings_of_a_step_are_added_up():
    met, starts = steps_of([[0, 4], [0, 7], [0, 4]])
    more = np.concatenate([met, met + 20 * MS, met + 40 * MS])
    late = lateness(more, starts, 100 * MS)
    assert late["held_up_ns"] == [0, 12 * MS]
    assert (late["steps"], late["straggler"]) == (3, 1)


def test_what_was_before_the_first_step_and_steps_without_meetings_do_not_count():
    met, starts = steps_of([[0, 99], [0, 20], [0, 20], [0, 20]])
    late = lateness(met, np.append(starts[1:], [9_000 * MS, 9_100 * MS]), 100 * MS)
    assert late["steps"] == 3
    assert late["held_up_ns"] == [0, 20 * MS]


def test_of_too_few_meetings_nothing_is_said():
    assert lateness(*steps_of([[0, 50], [0, 50]]), 100 * MS) is None
    assert lateness(np.empty((0, 2), np.int64), np.array([1]), 100 * MS) is None


@pytest.mark.parametrize(
    ("slept", "is_too_long"),
    [
        ([30.0, 1.0], False),
        ([20.0, 0.0], False),  # close to it
        ([3.0, 0.0], True),  # it went on meanwhile
        ([None, None], False),
    ],
)
def test_who_slept_less_than_it_waited_did_not_wait(slept, is_too_long):
    late = lateness(*steps_of([[0, 30], [0, 30], [0, 30]]), 100 * MS)
    slept_ns = [None if ms is None else ms * MS for ms in slept]
    assert too_long(late, slept_ns, 100 * MS) == is_too_long


@pytest.mark.parametrize(
    ("wait", "straggler"),
    [
        ([50.0, 1.0, 48.0], 1),
        ([5.0, 1.0, 6.0], None),
        ([50.0, 48.0, 1.0, 2.0], None),  # two are waited for
        ([1.0], None),
    ],
)
def test_by_waiting_the_straggler_is_the_one_that_waits_least(wait, straggler):
    assert by_waiting(wait, 100.0) == straggler
