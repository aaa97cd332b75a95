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
        "held_up_ns": [0, 27.5 * MS, 0],
        "straggler": 1,
    }


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
