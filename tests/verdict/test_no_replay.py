"""Runs that have something which a replay does not bring forth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.verdict.constructed import MS, TWO_CPUS, columns, split
from trainobs.verdict.replayable import why_no_replay
from trainobs.verdict.summed_steps import SummedSteps


@pytest.mark.parametrize(
    ("slept", "more", "is_refused"),
    [
        (200, {}, True),  # of a step of 499 ms: a sampler
        (25, {}, False),  # of 124
        (200, {"sched__worker_cpu_ns": 190 * MS}, False),  # workers pickle
        (200, {"sched__wait_runqueue_ns": 150 * MS}, False),
        (200, {"python__wait_gil_ns": 190 * MS, "sched__thread_cpu_ns": 400 * MS}, False),
        (200, {"batch__kept_ns": 190 * MS}, False),  # by workers that are busy
        (200, {"sched__wait_offcpu_ns": 20 * MS}, False),  # it computes
    ],
)
def test_nothing_is_replayed_where_a_sampler_sleeps_beside_batches_that_are_made(
    slept, more, is_refused
):
    late = split(handover=slept) | {"loader__wait_ns": slept * MS, "batch__made_compute_ns": 4 * MS}
    late |= {"sched__wait_offcpu_ns": (slept - 2) * MS, "sched__worker_cpu_ns": 6 * MS}
    late |= {
        "batch__kept_ns": 0.0,
        "sched__wait_runqueue_ns": 0.0,
        "sched__worker_runqueue_ns": 0.0,
    }
    summed = SummedSteps()
    summed.add(columns(**late | more))
    assert bool(why_no_replay(TWO_CPUS, summed)) is is_refused


@pytest.mark.parametrize(
    ("who", "computed", "others", "is_refused"),
    [
        ("thread", 400, 0.5, True),  # of 499 ms, with the training thread's 99 all that is left
        ("thread", 400, 0.0, False),
        ("thread", 90, 0.9, False),  # torch's own may have, beside the step
        ("child", 400, 0.5, True),
        ("child", 400, 0.0, False),
        ("child", 100, 0.9, True),  # it may be what the data set sleeps for
        ("child", 60, 0.9, False),  # 15 % of the sleep
    ],
)
def test_nothing_is_replayed_where_the_run_computes_for_the_data_set_and_cpus_are_short(
    who, computed, others, is_refused
):
    facts = replace(TWO_CPUS, workers=0, torch_threads=2)
    asleep = split(sleep=400) | {"loader__wait_ns": 400 * MS, "batch__sleep_ns": 400 * MS}
    asleep |= {"sched__main_offcpu_ns": 400 * MS, "sched__others_cpu_ratio": others}
    used = dict.fromkeys(("sched__worker_cpu_ns", "sched__child_cpu_ns", "sched__thread_cpu_ns"), 0)
    summed = SummedSteps()
    summed.add(columns(**asleep, **used | {f"sched__{who}_cpu_ns": computed * MS}))
    assert bool(why_no_replay(facts, summed)) is is_refused
    if who == "thread":
        assert why_no_replay(replace(facts, torch_threads=None), summed) is None
    assert why_no_replay(replace(facts, workers=2), summed) is None


@pytest.mark.parametrize(("computed", "is_refused"), [(4, False), (7, True)])
def test_a_process_beside_a_run_that_hardly_computes_leaves_it_predictable(computed, is_refused):
    """As a monitor that the script starts: the data set sleeps for a tenth of the step or less."""
    facts = replace(TWO_CPUS, usable_cpus=1.0, all_cpus=1.0, workers=0, torch_threads=1)
    asleep = split(sleep=10) | {"loader__wait_ns": 10 * MS, "batch__sleep_ns": 10 * MS}
    asleep |= {"sched__main_offcpu_ns": 10 * MS, "sched__others_cpu_ratio": 0.0}
    used = {"sched__worker_cpu_ns": 0, "sched__thread_cpu_ns": 0}
    (summed := SummedSteps()).add(columns(**asleep, **used, sched__child_cpu_ns=computed * MS))
    assert bool(why_no_replay(facts, summed)) is is_refused


@pytest.mark.parametrize(("batches", "is_refused"), [(64.0, False), (65.0, True)])
def test_a_replay_of_very_many_batches_a_step_takes_too_long(batches, is_refused):
    (summed := SummedSteps()).add(columns(batch__count=batches))
    assert bool(why_no_replay(TWO_CPUS, summed)) is is_refused
