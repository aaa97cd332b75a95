"""Where in a run the time lies that a verdict is about."""

from __future__ import annotations

import numpy as np
import pytest

from tests.verdict.constructed import (
    IN_STEP,
    MARKS,
    MS,
    STEPS,
    TWO_CPUS,
    columns,
    every,
    verdict_on,
)
from trainobs.verdict.evenness import when
from trainobs.verdict.rules import judge
from trainobs.verdict.sentence import sentence
from trainobs.verdict.summed_steps import SummedSteps
from trainobs.verdict.verdict import Cause, VerdictKind


@pytest.mark.parametrize(
    ("when", "waits"),
    [
        (
            "in every 50th step",
            [5000 * MS if step % 50 == 49 else 1 * MS for step in range(500)],
        ),
        (
            "in about 1 step of 50",
            [5000 * MS if step in (7, 60, 99, 180, 240) else 1 * MS for step in range(250)] * 2,
        ),
        ("since step 300", [1 * MS] * 300 + [200 * MS] * 200),
        ("since step 300", [1 * MS, 3 * MS] * 150 + [150 * MS, 250 * MS] * 100),
        ("until step 200", [200 * MS] * 200 + [1 * MS] * 300),
        ("", [(1 + number) * MS for number in range(500)]),  # it grows
        ("", [60 * MS * 4 if step % 4 == 3 else 1 * MS for step in range(500)]),
        ("", [100 * MS] * 500),
    ],
)
def test_slow_steps_are_never_left_out_and_it_is_told_where_they_are(when, waits):
    verdict = verdict_on(loader__wait_ns=waits, steps=500)
    assert verdict.kind is VerdictKind.LOADER
    assert verdict.ns_per_step == pytest.approx(np.mean(waits), rel=0.05)
    assert verdict.when == when


@pytest.mark.parametrize(
    ("waits", "told"),
    [
        ([1 * MS] * 300 + [200 * MS] * 200, "since 60 % of the steps"),
        ([9000 * MS] + [1 * MS] * 199, "in one step alone"),
    ],
)
def test_numbers_that_do_not_tell_which_step_it_is_are_not_told(waits, told):
    """Of a loop that counts samples, or from 0 again in each epoch."""
    for numbers in (np.arange(len(waits)) * 32, np.arange(len(waits)) % 50):
        summed = SummedSteps()
        made = columns(steps=len(waits), loader__wait_ns=waits)
        for half in (slice(None, 150), slice(150, None)):
            part = {name: column[half] for name, column in made.items()}
            summed.add(part, steps=numbers[half])
        assert when(summed, ("loader/wait_ns",)) == told


@pytest.mark.parametrize("known", [4, 200, 440])
def test_where_a_record_ends_the_time_need_not(known):
    """As after the service has ended: the training thread may sleep on."""
    slept = [30 * MS] * known + [np.nan] * (500 - known)
    made = columns(steps=500, phase__forward_ns=40 * MS, sched__work_offcpu_ns=slept)
    summed = SummedSteps()
    summed.add(made)
    assert when(summed, ("sched/work_offcpu_ns",)) == ""
    summed = SummedSteps()
    summed.add(made | {"sched/work_offcpu_ns": np.nan_to_num(made["sched/work_offcpu_ns"])})
    assert when(summed, ("sched/work_offcpu_ns",))


def test_of_the_newest_steps_alone_nobody_knows_a_first_epoch():
    summed = SummedSteps()
    summed.is_whole = False
    waits = [200 * MS] * 50 + [1 * MS] * 150
    summed.add(columns(steps=200, loader__wait_ns=waits), np.arange(200) // 50)
    assert when(summed, ("loader/wait_ns",)) == "until step 50"


def test_what_was_in_the_first_epoch_only_is_told():
    summed = SummedSteps()
    waits = [200 * MS] * 50 + [1 * MS] * 150
    summed.add(columns(steps=200, loader__wait_ns=waits), np.arange(200) // 50)
    verdict = judge(summed, TWO_CPUS)
    assert "in the first epoch only" in sentence(verdict)


@pytest.mark.parametrize("cause", [Cause.GARBAGE, Cause.INTERPRETER])
def test_what_came_in_one_step_is_of_that_step_and_no_change_is_said_to_help(cause):
    """One collection in the first of four epochs; and one that comes all the time."""
    name = {Cause.GARBAGE: "python__gc_ns", Cause.INTERPRETER: "python__gil_wait_ns"}[cause]

    def judged(lost):
        times = IN_STEP | {name: lost, "phase__forward_ns": lost + 10 * MS}
        summed = SummedSteps()
        summed.add(columns(200, **times), np.arange(200) // 50)
        return judge(summed, TWO_CPUS, replays=False)

    one = np.zeros(200)
    one[3] = 200 * 500 * MS
    verdict = judged(one)
    assert (verdict.cause, verdict.when, verdict.advice) == (cause, "in step 3 alone", None)
    if cause is Cause.INTERPRETER:  # of which the later steps do not know whether it came again
        one[170:] = np.nan
        assert judged(one).advice is None
    assert judged(np.full(200, 500 * MS)).advice is not None


@pytest.mark.parametrize(
    ("steps", "at", "told"), [(200, 120, "in step 120 alone"), (6000, 2500, "in steps 2432 to 25")]
)
def test_what_came_once_is_told_so_though_no_sample_has_it(steps, at, told):
    forward = np.full(steps, 10 * MS)
    forward[at] += 200 * steps * MS
    asleep = IN_STEP | {"sched__forward_sleep_ns": forward - 10 * MS, "phase__forward_ns": forward}
    summed = SummedSteps()
    summed.add(columns(steps, **asleep))
    assert f", in forward, {told}" in sentence(judge(summed, TWO_CPUS, replays=False))


@pytest.mark.parametrize(
    ("long", "told"),
    [
        ({2: 2600, 4: 2800}, "in steps 2 to 4 alone"),
        ({2: 600, 4: 800}, "mostly in steps 2 to 4"),
        ({step: 500 for step in range(9, 200, 20)}, "in every 20th step"),
        ({step: 100 for step in range(9, 200, 20)}, "mostly in every 20th step"),
        ({step: 900 for step in (9, 60, 99, 180)}, "in about 1 step of 50"),
        # Regularly, but in one part of the run; and in bursts.
        ({step: 500 for step in [*range(9, 110, 12), 170, 199]}, "in about 1 step of 18"),
        ({step + 3 * i: 500 for step in (5, 105) for i in range(6)}, "in about 1 step of 17"),
        ({step: 900 * 0.8**step for step in range(13)} | {150: 300}, "mostly in steps 0 to 6"),
        ({step: 900 for step in (60, 63, 70, 71, 180)}, "mostly in steps 60 to 71"),
        ({step: 15 for step in range(100, 200)}, "more since step 100"),
        ({step: 90 for step in range(100, 200)}, "since step 100"),
        ({step: 15 for step in range(50)}, ""),  # and what does a step do then?
        ({step: 5 for step in range(0, 200, 2)}, ""),  # two kinds of steps
    ],
)
def test_where_a_step_computes_is_told_if_it_is_not_everywhere(long, told):
    forward = np.full(200, 10 * MS)
    for step, times in long.items():
        forward[step] *= times
    summed = SummedSteps()
    summed.add(columns(200, phase__forward_ns=forward, phase__backward_ns=0.0))
    verdict = judge(summed, TWO_CPUS, replays=False)
    assert (verdict.kind, verdict.cause, verdict.when) == (VerdictKind.COMPUTE, None, told)


def test_a_loop_that_marks_no_phase_computes_unless_something_else_is_seen():
    unmarked = {"without": MARKS, "phase__other_ns": 99 * MS, **IN_STEP}
    unmarked["sched__work_offcpu_ns"] = 2 * MS
    computing = verdict_on(**unmarked)
    assert (computing.kind, computing.cause) == (VerdictKind.COMPUTE, None)
    saving = verdict_on(**unmarked, io__fsync_ns=40 * MS)
    assert saving.kind is None
    held_up = verdict_on(**unmarked | {"python__gc_ns": 60 * MS})
    assert held_up.cause is Cause.GARBAGE


@pytest.mark.parametrize("steps", [200, 6000])
def test_few_long_steps_of_a_loop_that_marks_no_phase_may_be_anything(steps):
    def judged(other, **more):
        unmarked = {"without": MARKS, "phase__other_ns": other, **IN_STEP}
        unmarked["sched__work_offcpu_ns"] = 2 * MS
        summed = SummedSteps()
        summed.add(columns(steps, **unmarked | more))
        return judge(summed, TWO_CPUS, replays=False)

    long = [value + 10 * MS for value in every(50, 900 * MS, steps)]
    assert judged(long).abstained_because == (
        "62 % of all time is what the loop takes longer in few steps, in no phase, as for a "
        "validation, a checkpoint or an optimizer that steps then"
    )
    collected = judged(long, python__gc_ns=every(50, 900 * MS, steps))
    assert collected.cause is Cause.GARBAGE
    half = [value + 10 * MS for value in every(2, 30 * MS, steps)]
    assert judged(half).kind is VerdictKind.COMPUTE  # two kinds of steps


def _unmarked(other, **more):
    return {
        "without": MARKS,
        "phase__other_ns": other,
        **IN_STEP,
        "sched__work_offcpu_ns": 0.0,
    } | more


@pytest.mark.parametrize(
    ("long", "told"),
    [
        (range(4, STEPS, 5), "in every 5th step, in no phase"),
        (range(2, STEPS, 3), "in every 3rd step, in no phase"),
        (range(0, STEPS, 12), "in every 12th step, in no phase"),
        ([*range(4, STEPS // 2, 3), STEPS - 5], "in some steps, in no phase"),
        (range(1, STEPS, 2), ""),  # two models that take turns, say
        ([0, 1, 5, 6, 7, 14, 15, 17, 22, 30, 31, 33, 40, 47, 49, 50], ""),  # long inputs, say
    ],
)
def test_what_a_loop_that_marks_nothing_does_every_so_many_steps_may_be_anything(long, told):
    other = np.full(STEPS, 5 * MS)
    other[list(long)] = 70 * MS
    other[3] = 11 * MS  # something came between
    verdict = verdict_on(**_unmarked(other, loader__wait_ns=0.2 * MS, phase__transfer_ns=0.0))
    assert (verdict.kind is None) == bool(told)
    assert told in (verdict.abstained_because or "")


@pytest.mark.parametrize("reads", [np.nan, 0.0, 20.0])  # of anybody, loader workers too
def test_what_waits_for_a_device_every_so_many_steps_may_be_saving(reads):
    other = np.array(every(4, 33 * MS)) + 7 * MS
    waits = {"sched__work_iowait_ns": every(4, 20 * MS), "block__read_count": reads}
    memory = {"memory__reclaim_ns": 0.0, "memory__main_reclaim_ns": 0.0}
    usual = {"loader__wait_ns": 0.2 * MS, "phase__transfer_ns": 0.0, **memory}
    verdict = verdict_on(**_unmarked(other, **usual) | waits)
    assert "in every 4th step, in no phase" in (verdict.abstained_because or "")


@pytest.mark.parametrize(
    ("length", "end_ms", "when"),
    [
        (8, 1, "in the first step of an epoch"),
        (8, 200, "where epochs end and begin"),  # old workers end, and new ones start
        (24, 800, "where epochs end and begin"),
        (8, 50, "mostly in the first step of an epoch"),
    ],
)
def test_a_wait_as_epochs_begin_is_told_so(length, end_ms, when):
    epochs = (np.arange(STEPS) + 1) // length  # the first step of a run is left out
    waits = np.full(STEPS, 1 * MS)
    waits[length - 1 :: length] = 400 * MS
    waits[length - 2 :: length] = end_ms * MS
    summed = SummedSteps()
    summed.add(columns(loader__wait_ns=waits), epochs)
    assert judge(summed, TWO_CPUS).when == when


@pytest.mark.parametrize(("last", "when"), [(4, ""), (12, "until step 52")])
def test_the_last_batches_which_nobody_has_to_choose_are_no_end_of_a_cost(last, when):
    waits = np.where(np.arange(STEPS) < STEPS - last, 100 * MS, 1 * MS)
    verdict = verdict_on(loader__wait_ns=waits)
    assert (verdict.kind, verdict.when) == (VerdictKind.LOADER, when)


@pytest.mark.parametrize("known", [200, 40])
def test_what_came_once_is_no_mean_of_the_steps_that_know_it(known):
    """As before a loss of the service: nobody knows that it came as often in the other steps."""
    forward = np.full(200, 10 * MS)
    forward[12] += 20_000 * MS
    slept = forward - 10 * MS
    slept[known:] = np.nan
    asleep = IN_STEP | {"sched__forward_sleep_ns": slept, "phase__forward_ns": forward}
    summed = SummedSteps()
    summed.add(columns(200, **asleep))
    verdict = judge(summed, TWO_CPUS, replays=False)
    assert verdict.ns_per_step == pytest.approx(20_000 * MS / 200, rel=0.01)
    assert verdict.share == pytest.approx(100 / summed.mean()["step/duration_ns"] * MS, rel=0.01)


@pytest.mark.parametrize("known", [200, 40, 4, 3])
def test_what_comes_in_all_steps_that_know_it_came_more_than_once(known):
    """As where the service is lost soon after the begin."""
    slept = np.where(np.arange(200) < known, 90 * MS, np.nan)
    asleep = IN_STEP | {"sched__forward_sleep_ns": slept, "phase__forward_ns": 100 * MS}
    summed = SummedSteps()
    summed.add(columns(200, **asleep))
    verdict = judge(summed, TWO_CPUS, replays=False)
    assert (verdict.kind, verdict.ns_per_step) == (VerdictKind.SLEEP, pytest.approx(90 * MS))
