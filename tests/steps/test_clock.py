"""The step clock: exact times, steps without gaps, and what begins and ends a step."""

from __future__ import annotations

import random
from itertools import groupby

import pytest

from tests.steps.ticking import KINDS, Ticking, times
from trainobs.core.abi import Phase
from trainobs.core.records import SETUP
from trainobs.steps.clock import StepClock

OTHER, LOADER, FORWARD, BACKWARD = Phase.OTHER, Phase.LOADER, Phase.FORWARD, Phase.BACKWARD
OPTIMIZER, CHECKPOINT, VALIDATION = Phase.OPTIMIZER, Phase.CHECKPOINT, Phase.VALIDATION


@pytest.fixture(params=KINDS)
def ticking(request) -> Ticking:
    return Ticking(kind=KINDS[request.param])


def test_an_inner_phase_stops_the_time_of_the_outer_one(ticking):
    ticking.clock.begin_fetch()
    ticking.after(5).end_fetch()
    ticking.clock.begin_batch()
    ticking.after(1).enter(OPTIMIZER)
    ticking.after(10).enter(FORWARD)
    ticking.after(100).enter(CHECKPOINT)
    ticking.after(1000).leave()
    ticking.after(200).leave()
    ticking.after(20).leave()
    ticking.after(2).end_step()
    ticking.after(3)
    (step,) = ticking.closed()
    assert times(step) == {LOADER: 5, OTHER: 6, OPTIMIZER: 30, FORWARD: 300, CHECKPOINT: 1000}
    assert step.end_ns - step.start_ns == 1341


def test_the_kernel_sees_each_phase_and_step_as_it_begins(ticking):
    ticking.word.history.clear()
    ticking.clock.begin_fetch()
    ticking.clock.end_fetch()
    ticking.clock.begin_batch()
    ticking.clock.enter(FORWARD)
    ticking.clock.leave()
    ticking.clock.end_step()
    assert ticking.word.mark == (1, OTHER)
    ticking.clock.begin_fetch()
    seen = [mark for mark, _ in groupby(ticking.word.history)]
    assert seen == [
        (1, LOADER), (1, OTHER), (1, FORWARD), (1, OTHER), (2, LOADER),
    ]  # fmt: skip


def test_a_step_reaches_to_the_first_fetch_of_the_next(ticking):
    ticking.after(7)
    ticking.step(fetch=10, work=20)
    ticking.after(300)  # a validation, say
    ticking.step(fetch=40, work=50)
    ticking.clock.finish()
    setup, first, second = ticking.all_closed
    assert (setup.step, setup.start_ns, setup.end_ns) == (SETUP, 1000, 1007)
    assert (first.step, first.end_ns - first.start_ns) == (0, 330)
    assert (second.step, second.end_ns - second.start_ns) == (1, 90)


def test_the_fetch_that_finds_the_loader_exhausted_opens_no_step(ticking):
    ticking.step(fetch=10, work=20)
    ticking.clock.begin_fetch()
    ticking.after(5).end_fetch()
    ticking.clock.cancel()
    ticking.after(1)
    assert ticking.word.mark == (1, OTHER)
    (step,) = ticking.closed()
    assert times(step) == {LOADER: 15, OTHER: 21}


def test_a_loader_that_is_exhausted_at_once_opens_no_step(ticking):
    ticking.clock.begin_fetch()
    ticking.after(5).end_fetch()
    ticking.clock.cancel()
    ticking.clock.finish()
    (setup,) = ticking.all_closed
    assert (setup.step, times(setup)) == (SETUP, {LOADER: 5})


def test_a_fetch_that_failed_and_is_tried_again_opens_one_step(ticking):
    ticking.step()
    ticking.clock.begin_fetch()
    ticking.after(5).end_fetch()  # an exception, which the loop catches
    ticking.step(fetch=6)
    assert [(step.step, times(step)) for step in ticking.closed()] == [(0, {}), (1, {LOADER: 11})]


def test_accumulated_batches_are_one_step(ticking):
    for _ in range(3):
        for batch in range(4):
            ticking.clock.begin_fetch()
            ticking.after(1).end_fetch()
            ticking.clock.begin_batch()
            ticking.after(10)
            if batch == 3:
                ticking.clock.end_step()
    steps = ticking.closed()
    assert [step.step for step in steps] == [0, 1, 2]
    assert [times(step) for step in steps] == [{LOADER: 4, OTHER: 40}] * 3


def test_steps_that_no_fetch_opens_begin_with_their_batch(ticking):
    for _ in range(3):
        ticking.clock.begin_batch()
        ticking.after(10).end_step()
    assert [(s.step, s.end_ns - s.start_ns) for s in ticking.closed()] == [
        (0, 10),
        (1, 10),
        (2, 10),
    ]


def test_numbers_count_from_0_and_go_on_from_one_that_was_given(ticking):
    for number in (None, None, 100, None, 3):
        ticking.step(number=number)
    assert [step.step for step in ticking.closed()] == [0, 1, 100, 101, 3]


def test_a_step_keeps_the_epoch_in_which_it_began(ticking):
    for epoch in (0, 0, 1):
        ticking.clock.begin_batch(None, epoch)
        ticking.clock.end_step()
    assert [step.epoch for step in ticking.closed()] == [0, 0, 1]


def test_epochs_that_nobody_counts_begin_with_a_loader_after_a_step(ticking):
    assert [ticking.clock.begin_epoch(), ticking.clock.begin_epoch()] == [0, 0]
    ticking.step()
    assert [ticking.clock.begin_epoch(), ticking.clock.begin_epoch()] == [1, 1]


def test_a_clock_that_joins_a_step_begins_with_the_next_one(ticking):
    """Of a process that is observed from its middle on."""
    ticking.clock.join()
    ticking.step(fetch=10, work=20)
    ticking.step()
    ticking.clock.finish()
    setup, first = ticking.all_closed
    assert (setup.step, setup.end_ns - setup.start_ns) == (SETUP, 30)
    assert (first.step, first.serial) == (0, 1)


def test_finishing_before_any_step_leaves_the_set_up_alone(ticking):
    ticking.after(9).finish()
    (setup,) = ticking.all_closed
    assert (setup.step, setup.serial, times(setup)) == (SETUP, 0, {OTHER: 9})


def test_finishing_within_a_step_closes_it_as_it_is(ticking):
    ticking.clock.begin_batch()
    ticking.clock.enter(BACKWARD)
    ticking.after(4)
    (step,) = ticking.closed()
    assert (step.step, times(step)) == (0, {BACKWARD: 4})


def test_a_leave_too_many_does_nothing(ticking):
    ticking.clock.begin_batch()
    ticking.after(2).leave()
    ticking.after(3).end_step()
    assert times(ticking.closed()[0]) == {OTHER: 5}


def test_after_detaching_the_kernel_sees_nothing_and_time_goes_on(ticking):
    ticking.clock.begin_batch()
    ticking.clock.detach()
    mark = ticking.word.mark
    ticking.clock.enter(VALIDATION)
    ticking.after(8).leave()
    ticking.clock.end_step()
    (step,) = ticking.closed()
    assert ticking.word.mark == mark
    assert times(step) == {VALIDATION: 8}


def test_a_step_is_told_of_once_it_is_certain_with_totals_of_its_end():
    totals = iter(range(100))
    told = []
    ticking = Ticking(
        sample=lambda: [next(totals)], on_close=lambda: told.append(ticking.clock.step)
    )
    ticking.step()  # its fetch samples 0, for the set-up
    ticking.clock.begin_fetch()  # samples 1, in vain
    ticking.clock.end_fetch()
    ticking.clock.cancel()
    assert told == [0]  # the set-up was certain as soon as step 0 had a batch
    (step,) = ticking.closed()  # samples 2
    assert step.totals == [2]
    assert told == [0, 0]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_loop_does_phases_add_up_and_steps_leave_no_gap(seed):
    chance = random.Random(seed)
    ticking = Ticking()
    clock = ticking.clock
    actions = (
        *[lambda: clock.enter(chance.randrange(len(Phase)))] * 3,
        *[clock.leave] * 3,
        *[clock.begin_fetch, clock.end_fetch] * 2,
        *[clock.begin_batch, clock.end_step] * 2,
        clock.cancel,
    )
    steps = ticking.at_random(chance, actions)
    assert len(steps) > 10
    assert [step.serial for step in steps] == list(range(len(steps)))


def test_where_nothing_reads_the_epoch_it_is_not_told():
    word = [0]
    StepClock(word).begin_reading()
    assert word == [0]
    word = [0, 7]
    StepClock(word).begin_reading()
    assert word[1] == 0
