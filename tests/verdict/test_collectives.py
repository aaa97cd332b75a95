"""Time in collectives: of several ranks, where it is measured, and where it is not."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest

from tests.verdict.constructed import IN_STEP, MARKS, MS, TWO_CPUS, WAITING, columns, verdict_on
from trainobs.verdict.metric_names import SLEEPS
from trainobs.verdict.parts import parts_of
from trainobs.verdict.summed_steps import SummedSteps
from trainobs.verdict.verdict import Cause, VerdictKind


def test_the_interpreter_lock_is_no_collective_where_these_were_not_measured():
    ranks = replace(TWO_CPUS, world_size=2)
    sleep = {"sched__main_offcpu_ns": 63 * MS, "net__sent_bytes": 1e6, "python__gil_wait_ns": 0.0}
    assert verdict_on(ranks, **sleep).kind is VerdictKind.COMMUNICATION
    explained = verdict_on(ranks, **{**sleep, "python__gil_wait_ns": 60 * MS})
    assert (explained.kind, explained.cause) == (VerdictKind.COMPUTE, Cause.INTERPRETER)


def test_collectives_take_their_time_out_of_computation():
    ranks = replace(TWO_CPUS, world_size=2)
    verdict = verdict_on(ranks, ranks__wait_ns=60 * MS)
    assert (verdict.kind, verdict.cause) == (VerdictKind.COMMUNICATION, None)
    assert verdict.share == pytest.approx(0.6)
    late = verdict_on(
        replace(ranks, others_wait_ns={1: 55 * MS, 3: 2 * MS}), ranks__wait_ns=60 * MS
    )
    assert late.cause is Cause.STRAGGLER
    assert late.advice is not None
    assert late.advice.text.startswith("look at rank 3, which waits least")
    staggered = replace(ranks, world_size=3, others_wait_ns={1: 35 * MS, 2: 2 * MS})
    late = verdict_on(staggered, ranks__wait_ns=60 * MS)
    assert late.cause is Cause.STRAGGLER
    assert late.advice is not None
    assert late.advice.gain[0] == pytest.approx(1 / (1 - 0.33 / 2))  # for rank 1 they wait as well
    alike = replace(ranks, others_wait_ns={1: 50 * MS})
    assert verdict_on(alike, ranks__wait_ns=60 * MS).cause is None


@pytest.mark.parametrize(
    "waits",
    [
        {1: 2 * MS, 2: 58 * MS, 3: 1 * MS},  # pairs: rank 0 waits for 1, and rank 2 for 3
        {1: 2 * MS, 2: 58 * MS},  # of rank 3 nothing is at hand
    ],
)
def test_no_rank_is_named_where_the_one_that_is_awaited_may_be_another(waits):
    ranks = replace(TWO_CPUS, world_size=4, others_wait_ns=waits)
    verdict = verdict_on(ranks, ranks__wait_ns=60 * MS)
    assert (verdict.kind, verdict.cause) == (VerdictKind.COMMUNICATION, None)
    assert verdict.advice is None


def off_cpu(ns, **sleeps):
    """A training thread that was off the CPU in work, and what it slept for there."""
    return {
        "sched__work_offcpu_ns": ns,
        "sched__work_runqueue_ns": 0.0,
        "sched__work_iowait_ns": 0.0,
        **{name.replace("/", "__"): 0.0 for name in SLEEPS},
        **sleeps,
    }


def test_what_is_waited_for_in_a_checkpoint_is_no_second_cost():
    """`ranks/wait_ns` has the waits of all phases; those of work are off the CPU there."""
    ranks = replace(TWO_CPUS, world_size=2)
    saves = {"phase__checkpoint_ns": 40 * MS, "ranks__wait_ns": 45 * MS}
    verdict = verdict_on(ranks, **saves, **off_cpu(8 * MS))
    assert (verdict.kind, verdict.ns_per_step) == (VerdictKind.CHECKPOINT, 40 * MS)
    both = verdict_on(ranks, **saves, **off_cpu(38 * MS))
    assert (both.kind, both.ns_per_step) == (VerdictKind.MIXED, 78 * MS)


def test_a_wait_in_collectives_is_no_part_of_other_sleep():
    ranks = replace(TWO_CPUS, world_size=2)
    asleep = off_cpu(58 * MS, sched__other_sleep_ns=50 * MS, sched__thread_cpu_ns=20 * MS)
    verdict = verdict_on(ranks, **asleep, ranks__wait_ns=8 * MS)
    assert (verdict.kind, verdict.ns_per_step) == (VerdictKind.SLEEP, 50 * MS)


def test_beside_a_gpu_there_is_no_sleep_to_take_a_wait_off():
    summed = SummedSteps()
    summed.add(columns(**off_cpu(58 * MS, sched__thread_cpu_ns=0.0), ranks__wait_ns=8 * MS))
    parts = parts_of(summed.mean(), replace(TWO_CPUS, world_size=2, has_accelerator=True))
    assert parts.part[VerdictKind.SLEEP] == 0.0


def test_where_collectives_are_not_measured_sleep_tells_if_something_was_sent():
    ranks = replace(TWO_CPUS, world_size=2)
    asleep = {"sched__main_offcpu_ns": 60 * MS, "net__sent_bytes": 1e6, "python__gil_wait_ns": 0.0}
    assert verdict_on(ranks, **asleep).kind is VerdictKind.COMMUNICATION
    alone = verdict_on(**asleep)  # nobody to wait for
    assert alone.abstained_because == (
        "for 58 % of the step the training thread is off the CPU, and nobody knows why"
    )
    for unknown in (
        {"net__sent_bytes": 0.0},
        {"sched__main_offcpu_ns": 10 * MS},
        {"python__gil_wait_ns": nan},  # it may have been that
    ):
        verdict = verdict_on(ranks, **asleep | unknown)
        assert verdict.abstained_because == "the time in collectives was not measured"
    assert verdict_on(ranks, **WAITING).kind is VerdictKind.LOADER  # whatever else there is
    in_loader = asleep | {"sched__main_offcpu_ns": 101 * MS}
    assert verdict_on(ranks, **WAITING, **in_loader).kind is VerdictKind.LOADER


def test_collectives_of_a_loop_that_marks_nothing_are_in_no_phase():
    ranks = replace(TWO_CPUS, world_size=2, workers=0, others_wait_ns={1: 5 * MS})
    bare = {"without": MARKS, "phase__other_ns": 209 * MS, "loader__wait_ns": 0.2 * MS, **IN_STEP}
    bare |= {"sched__work_offcpu_ns": 190 * MS, "sched__thread_cpu_ns": 10 * MS}
    verdict = verdict_on(ranks, **bare, ranks__wait_ns=178 * MS)
    assert (verdict.kind, verdict.cause) == (VerdictKind.COMMUNICATION, Cause.STRAGGLER)
    little = verdict_on(ranks, **bare | {"sched__work_offcpu_ns": 21 * MS}, ranks__wait_ns=20 * MS)
    assert (little.kind, little.cause) == (VerdictKind.COMPUTE, None)
    assert little.ns_per_step == pytest.approx(187.9 * MS)  # but for the collector
