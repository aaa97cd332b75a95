"""Steps of a loop that marks none: one from each fetch, until a mark comes."""

from __future__ import annotations

import random

import pytest

from tests.steps.test_collector import Run
from tests.steps.ticking import KINDS, Ticking, times
from trainobs.core.abi import Phase
from trainobs.core.records import SETUP
from trainobs.steps.clock import MAX_NAMED
from trainobs.steps.closed_step import ClosedStep
from trainobs.steps.fetch_steps import MAX_HELD, MAX_HELD_NS
from trainobs.steps.states import StepsBy

OTHER, LOADER = Phase.OTHER, Phase.LOADER


@pytest.fixture(params=KINDS)
def ticking(request) -> Ticking:
    return from_fetches(Ticking(kind=KINDS[request.param]))


def from_fetches(ticking: Ticking) -> Ticking:
    ticking.clock.steps_by = StepsBy.FETCHES
    return ticking


def fetch(ticking: Ticking, *, wait: int = 5, work: int = 10, leads: bool = True) -> None:
    ticking.clock.begin_fetch(leads)
    ticking.after(wait).end_fetch()
    ticking.clock.begin_batch(None, None, leads)
    ticking.after(work)


def mark(ticking: Ticking, number: int | None = None) -> None:
    ticking.clock.begin_step(number)
    ticking.clock.end_step()


def numbers(steps: list[ClosedStep]) -> list[int]:
    return [step.step for step in steps]


def test_a_fetch_leads_where_nothing_else_is_said(ticking):
    for _ in range(2):
        ticking.clock.begin_fetch()
        ticking.after(5).end_fetch()
        ticking.clock.begin_batch()
        ticking.after(10)
    assert numbers(ticking.closed()) == [0, 1]


def test_each_fetch_ends_the_step_before(ticking):
    for _ in range(3):
        fetch(ticking)
    steps = ticking.closed()
    assert numbers(steps) == [0, 1, 2]
    assert [times(step) for step in steps] == [{LOADER: 5, OTHER: 10}] * 3
    assert ticking.clock.fetches.count == 3


def test_the_fetch_that_finds_the_loader_exhausted_opens_no_step(ticking):
    fetch(ticking)
    ticking.clock.begin_fetch()
    ticking.after(3).end_fetch()
    ticking.clock.cancel()
    fetch(ticking, wait=7)
    steps = ticking.closed()
    assert [times(step) for step in steps] == [{LOADER: 8, OTHER: 10}, {LOADER: 7, OTHER: 10}]


def test_fetches_that_do_not_lead_belong_to_the_step_that_goes_on(ticking):
    fetch(ticking, wait=2, leads=False)  # before the first step
    for _ in range(2):
        fetch(ticking)
        fetch(ticking, leads=False)
    assert [times(step) for step in ticking.closed()] == [{LOADER: 10, OTHER: 20}] * 2


def test_accumulated_batches_are_one_step_though_the_mark_comes_late(ticking):
    for _ in range(3):
        for _ in range(4):
            fetch(ticking)
        mark(ticking)
    steps = ticking.closed()
    assert numbers(steps) == [0, 1, 2]
    assert [times(step) for step in steps] == [{LOADER: 20, OTHER: 40}] * 3
    assert [len(step.merged) for step in steps] == [3, 0, 0]
    assert ticking.clock.fetches.count == 0


def test_a_mark_after_the_whole_pass_takes_all_of_it(ticking):
    for _ in range(3):
        fetch(ticking)
    ticking.clock.begin_fetch()
    ticking.clock.end_fetch()
    ticking.clock.cancel()
    mark(ticking, 7)
    (step,) = ticking.closed()
    assert (step.step, times(step)) == (7, {LOADER: 15, OTHER: 30})


@pytest.mark.parametrize("marked", [MAX_HELD + 1, MAX_HELD + 2])
def test_after_too_many_fetches_what_was_taken_for_steps_are_steps(ticking, marked):
    for _ in range(marked):
        fetch(ticking)
    mark(ticking)
    steps = ticking.closed()
    is_late = marked > MAX_HELD + 1
    assert len(steps) == (marked if is_late else 1)
    assert ticking.clock.fetches.count == (marked - 1 if is_late else 0)


def test_they_are_held_back_for_some_time_only(ticking):
    fetch(ticking, work=MAX_HELD_NS - 100)
    fetch(ticking)
    assert numbers(ticking.all_closed) == [SETUP]
    fetch(ticking, work=200)
    fetch(ticking)
    assert numbers(ticking.all_closed) == [SETUP, 0, 1, 2]


def test_a_phase_around_a_fetch_keeps_it_from_ending_a_step(ticking):
    fetch(ticking)
    ticking.clock.enter(Phase.VALIDATION)
    fetch(ticking)
    ticking.clock.leave()
    assert numbers(ticking.closed()) == [0]


def test_epochs_are_passes_that_lead(ticking):
    clock = ticking.clock
    epochs = []
    for _ in range(3):
        one = object()
        assert clock.fetches.lead(one, trains=True)
        epochs.append(clock.begin_epoch())
        fetch(ticking)
        fetch(ticking)
        clock.fetches.follow(one)
    assert epochs == [0, 1, 2]


def test_the_outermost_pass_leads_and_one_that_does_not_train_never(ticking):
    fetches, outer, inner = ticking.clock.fetches, object(), object()
    assert not fetches.lead(outer, trains=False)
    assert fetches.lead(outer, trains=True)
    assert not fetches.lead(inner, trains=True)
    fetches.follow(inner)  # which never led
    assert not fetches.lead(inner, trains=True)
    fetches.follow(outer)
    assert fetches.lead(inner, trains=True)


def test_of_two_passes_over_one_loader_the_second_leads(ticking):
    fetches, peek, own, other = ticking.clock.fetches, object(), object(), object()
    loader = object()
    assert fetches.lead(peek, trains=True, of=loader)
    assert not fetches.lead(other, trains=True, of=object())
    assert fetches.lead(own, trains=True, of=loader)
    fetches.follow(peek)  # too late
    assert not fetches.lead(other, trains=True, of=object())


def test_what_the_kernel_counted_in_merged_steps_is_counted_once():
    run = Run()
    from_fetches(run.ticking)
    for size in (1, 10, 100):
        fetch(run.ticking, work=1_000_000)
        run.kernel.read(run.ticking.clock.serial, size)
        run.collector.collect(settle=False)
    mark(run.ticking)
    fetch(run.ticking)
    run.kernel.read(run.ticking.clock.serial, 1_000)
    run.ticking.clock.finish()
    run.collector.collect(settle=False)
    table = run.collector.table()
    assert table.step.tolist() == [SETUP, 0, 1]
    assert table.columns["io/data_read_bytes"].tolist() == [0, 111, 1_000]
    assert table.latency.sum(axis=1).tolist() == [0, 3, 1]
    assert run.collector.late_count == 0


def test_what_was_counted_in_a_fetch_without_a_batch_is_not_lost_with_the_step_before_it():
    run = Run()
    clock = from_fetches(run.ticking).clock
    fetch(run.ticking, work=1_000_000)
    run.kernel.read(clock.serial, 1)
    clock.begin_fetch()
    run.kernel.read(clock.serial, 10)
    clock.end_fetch()
    clock.cancel()
    fetch(run.ticking, work=1_000_000)
    mark(run.ticking)
    clock.finish()
    run.collector.collect(settle=False)
    table = run.collector.table()
    assert table.step.tolist() == [SETUP, 0]
    assert table.columns["io/data_read_bytes"].tolist() == [0, 11]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_loop_does_no_time_and_no_serial_is_lost(seed):
    chance = random.Random(seed)
    ticking = from_fetches(Ticking())
    clock = ticking.clock
    marks = chance.choice([0, 0, 1])  # most loops mark none
    actions = (
        *[lambda: clock.enter(chance.randrange(len(Phase) + len(clock.named)))] * 2,
        lambda: clock.name_phase(str(chance.randrange(2 * MAX_NAMED))),
        *[clock.leave] * 3,
        *[lambda: fetch(ticking, leads=chance.random() < 0.8)] * 6,
        clock.cancel,
        *[lambda: mark(ticking)] * marks,
    )
    steps = ticking.at_random(chance, actions)
    serials = [serial for step in steps for serial in step.serials]
    assert serials == list(range(len(serials)))


def test_phases_with_a_name_of_the_users_follow_on_those_that_the_kernel_knows(ticking):
    phase = ticking.clock.name_phase("augment")
    fetch(ticking)
    ticking.clock.enter(phase)
    assert ticking.word[0] == 1 << 8 | phase
    ticking.after(30).leave()
    (step,) = ticking.closed()
    assert (phase, step.phase_ns[phase]) == (len(Phase), 30)
    assert ticking.clock.name_phase("augment") == phase
    names = [ticking.clock.name_phase(f"phase_{number}") for number in range(MAX_NAMED)]
    assert names == [*range(phase + 1, len(Phase) + MAX_NAMED), None]
