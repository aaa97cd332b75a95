"""The hand-over of batches as a cause, and what only looks like it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.verdict.constructed import MS, SPLIT, TWO_CPUS, WAITING, split, verdict_on
from trainobs.replay.handover import NO_DRAW, Draw
from trainobs.verdict.verdict import Cause, VerdictKind


def test_what_waited_for_a_cpu_was_not_handed_over_late():
    late = split(handover=100)
    queued = {"sched__wait_runqueue_ns": 70 * MS, "sched__main_runqueue_ns": 71 * MS}
    assert verdict_on(**late, **queued).cause is Cause.CPU
    taken = {"sched__wait_runqueue_ns": 30 * MS, "sched__main_runqueue_ns": 31 * MS}
    both = verdict_on(**late, **taken, sched__worker_runqueue_ns=40 * MS)
    assert both.cause is None  # as much as all of it, or as little as 30 of 100


@pytest.mark.parametrize(
    ("kept", "worker_cpu", "made", "cause"),
    [
        (95, 5, 3, None),  # the next batch is made asleep, and the worker holds its lock
        (95, 99, 97, None),  # it is computed
        (95, 99, 5, Cause.HANDOVER),  # and the worker pickles for 94
        (30, 99, 5, Cause.HANDOVER),
    ],
)
def test_what_a_worker_may_keep_while_it_makes_the_next_batch_is_no_hand_over(
    kept, worker_cpu, made, cause
):
    known = {"batch__kept_ns": kept * MS, "batch__made_compute_ns": made * MS}
    late = split(handover=100) | known | {"sched__worker_cpu_ns": worker_cpu * MS}
    assert verdict_on(**late).cause is cause


@pytest.mark.parametrize(
    ("worker_cpu", "off", "cause"),
    [
        (99, 97, Cause.HANDOVER),  # workers pickle
        (5, 97, None),  # a sampler sleeps in the training thread
        (40, 97, None),
        (40, 30, Cause.FETCH),  # or computes for 70
    ],
)
def test_what_nobody_computes_for_is_no_hand_over(worker_cpu, off, cause):
    """The batch is made, and the training thread in `next`: it may do anything there."""
    late = split(handover=100) | {"batch__made_compute_ns": 4 * MS}
    computed = {"sched__worker_cpu_ns": worker_cpu * MS, "sched__wait_offcpu_ns": off * MS}
    assert verdict_on(**late, **computed).cause is cause
    if cause is Cause.HANDOVER:
        assert verdict_on(**late, **computed, batch__sleep_ns=50 * MS).cause is None


def test_a_sampler_that_computes_a_little_is_no_hand_over():
    short = {"loader__wait_ns": 2.9 * MS, "loader__handover_ns": 2.9 * MS}
    none = {"phase__backward_ns": 0.0, "phase__optimizer_ns": 0.0, "phase__forward_ns": 0.5 * MS}
    parts = {f"loader__{part}_ns": 0.0 for part in SPLIT if part != "handover"}
    late = short | none | parts | {"sched__wait_offcpu_ns": 0.1 * MS, "batch__made_compute_ns": 0.0}
    assert verdict_on(**late, sched__worker_cpu_ns=0.3 * MS).cause is None
    assert verdict_on(**late, sched__worker_cpu_ns=2 * MS).cause is Cause.HANDOVER


@pytest.mark.parametrize(
    ("tensors", "cause"),
    [
        (None, Cause.FETCH),
        (2, Cause.FETCH),
        (600, None),  # they take 30 ms or more of 70
        (1400, Cause.HANDOVER),
    ],
)
def test_tensors_that_are_taken_over_one_by_one_are_no_sampler(tensors, cause):
    late = split(handover=100) | {"batch__made_compute_ns": 4 * MS}
    computed = {"sched__worker_cpu_ns": 40 * MS, "sched__wait_offcpu_ns": 30 * MS}
    size = {"batch__handed_bytes": 1e6}
    verdict = verdict_on(replace(TWO_CPUS, tensors=tensors), **late, **computed, **size)
    assert verdict.cause is cause
    if cause is Cause.HANDOVER:
        assert verdict.advice.change == {"tensors_per_batch": 1}
        assert "1400 tensors of a batch" in verdict.advice.text


@pytest.mark.parametrize("draw", [Draw(70 * MS, 0.0), Draw(0.0, 70 * MS), Draw(50 * MS, 20 * MS)])
def test_what_the_sampler_takes_is_known_and_no_hand_over(draw):
    computed = {"sched__wait_offcpu_ns": (97 - draw.cpu / MS) * MS, "sched__worker_cpu_ns": 30 * MS}
    late = split(handover=100) | {"batch__made_compute_ns": 4 * MS} | computed
    assert verdict_on(replace(TWO_CPUS, draw=draw), **late).cause is Cause.SAMPLER
    assert verdict_on(replace(TWO_CPUS, draw=NO_DRAW), **late).cause is not Cause.SAMPLER


@pytest.mark.parametrize(
    ("draw", "cause"),
    [
        (Draw(80 * MS, 0.0), Cause.SAMPLER),
        (Draw(0.0, 0.0), Cause.TRANSFORM),
        (Draw(50 * MS, 0.0), None),  # each of the two takes half
    ],
)
def test_so_it_is_where_the_training_thread_makes_the_batches(draw, cause):
    alone = replace(TWO_CPUS, workers=0, draw=draw)
    assert verdict_on(alone, **split(compute=99)).cause is cause


@pytest.mark.parametrize(
    ("tensors", "handed_bytes", "told"),
    [
        (90, 1e6, True),
        (90, 96e6, False),  # its bytes may take all of it, in however many tensors
        (90, np.nan, False),
        (9, 1e6, False),  # each took 10 ms, which is more than it needs
        (2, 1e6, False),
    ],
)
def test_fewer_tensors_are_advised_where_they_surely_cost(tensors, handed_bytes, told):
    late = split(handover=100) | {"batch__made_compute_ns": 4 * MS}
    computed = {"sched__worker_cpu_ns": 99 * MS, "sched__wait_offcpu_ns": 97 * MS}
    facts = replace(TWO_CPUS, tensors=tensors)
    verdict = verdict_on(facts, **late, **computed, batch__handed_bytes=handed_bytes)
    assert verdict.cause is Cause.HANDOVER
    advised = verdict.advice is not None and verdict.advice.change == {"tensors_per_batch": 1}
    assert advised is told


def test_a_worker_that_computes_hands_over_late_which_is_no_hand_over():
    late = split(handover=100) | {"sched__worker_cpu_ns": 99 * MS, "batch__made_compute_ns": 0.0}
    assert verdict_on(**late, batch__compute_ns=90 * MS).cause is None
    assert verdict_on(**late, batch__compute_ns=1 * MS).cause is Cause.HANDOVER


def test_taking_over_batches_is_nothing_to_remedy():
    short = {
        "phase__forward_ns": 1 * MS,
        "phase__backward_ns": 1 * MS,
        "phase__optimizer_ns": 0.1 * MS,
        "phase__transfer_ns": 0.0,
        "phase__other_ns": 0.1 * MS,
        "loader__wait_ns": 0.7 * MS,
        "sched__main_offcpu_ns": 0.7 * MS,
    }
    assert verdict_on(**short, sched__wait_offcpu_ns=0.1 * MS).kind is VerdictKind.COMPUTE
    short["sched__main_runqueue_ns"] = 0.0
    assert verdict_on(**short, sched__wait_offcpu_ns=0.7 * MS).kind is VerdictKind.LOADER


@pytest.mark.parametrize(
    ("off", "cause"),
    [(20, Cause.FETCH), (98, None)],  # asleep, or without a CPU, for so long of 100 ms
)
def test_what_the_training_thread_computes_in_a_wait_is_no_hand_over(off, cause):
    late = split(handover=100) | {"sched__wait_offcpu_ns": off * MS}
    late |= {"sched__worker_cpu_ns": 99 * MS, "batch__made_compute_ns": 0.0}
    assert verdict_on(**late).cause is (cause or Cause.HANDOVER)
    unknown = replace(TWO_CPUS, workers=None)  # a loader of one's own
    assert verdict_on(unknown, **WAITING, sched__wait_offcpu_ns=off * MS).cause is cause


def test_to_take_a_batch_over_is_no_fetch():
    short = {"loader__wait_ns": 3 * MS, "loader__handover_ns": 3 * MS, "phase__forward_ns": 2 * MS}
    none = {"phase__backward_ns": 0.0, "phase__optimizer_ns": 0.0, "phase__other_ns": 0.0}
    parts = {f"loader__{part}_ns": 0.0 for part in SPLIT if part != "handover"}
    computed = {"sched__worker_cpu_ns": 2 * MS, "batch__made_compute_ns": 0.0}
    verdict = verdict_on(**short | none | parts, **computed, sched__wait_offcpu_ns=0.5 * MS)
    assert (verdict.kind, verdict.cause) == (VerdictKind.LOADER, Cause.HANDOVER)


@pytest.mark.parametrize(("batches", "kind"), [(1.0, VerdictKind.LOADER), (8.0, None)])
def test_to_take_over_many_batches_costs_no_more_than_each_of_them(batches, kind):
    """1.2 ms each of 8, in a step of 33 ms."""
    taken = split(handover=9.6) | {"loader__wait_ns": 9.6 * MS, "sched__wait_offcpu_ns": 0.4 * MS}
    work = {"phase__forward_ns": 13 * MS, "phase__backward_ns": 10 * MS, "phase__optimizer_ns": 0.0}
    made = {"batch__compute_ns": 8 * MS, "batch__made_compute_ns": 8 * MS}
    made |= {"sched__worker_cpu_ns": 14 * MS, "sched__main_offcpu_ns": 0.4 * MS}
    verdict = verdict_on(**taken, **work, **made, batch__count=batches)
    assert verdict.cause is (Cause.FETCH if batches == 1 else None)
    assert (verdict.kind is VerdictKind.LOADER) is (kind is VerdictKind.LOADER)


def test_a_sampler_is_asked_for_each_of_many_batches():
    facts = replace(TWO_CPUS, workers=0, draw=Draw(3 * MS, 0.0))
    asked = split(compute=25.6) | {"loader__wait_ns": 25.6 * MS, "batch__compute_ns": 25.6 * MS}
    asked |= {"sched__wait_offcpu_ns": 0.0}
    assert verdict_on(facts, **asked, batch__count=8.0).cause is Cause.SAMPLER
    assert verdict_on(facts, **asked, batch__count=1.0).cause is Cause.TRANSFORM
