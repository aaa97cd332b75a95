"""Causes of a wait for data: stops, and what nobody knows of batches."""

from __future__ import annotations

from dataclasses import replace

from tests.verdict.constructed import MS, TWO_CPUS, columns, split, verdict_on
from trainobs.verdict.replayable import why_no_replay
from trainobs.verdict.summed_steps import SummedSteps
from trainobs.verdict.verdict import Cause, VerdictKind


def test_no_cause_rests_on_what_nobody_knows_of_batches():
    """As where their files are gone: all that workers compute would be for handing over."""
    late = split(handover=100) | {"sched__worker_cpu_ns": 99 * MS}
    known = {"batch__made_compute_ns": 2 * MS, "batch__compute_ns": 2 * MS}
    assert verdict_on(**late, **known).cause is Cause.HANDOVER
    assert verdict_on(**late, batch__made_compute_ns=2 * MS).cause is Cause.HANDOVER
    assert verdict_on(**late).cause is None
    asleep = {"sched__wait_offcpu_ns": 100 * MS, "sched__worker_cpu_ns": 5 * MS}
    summed = SummedSteps()
    summed.add(columns(**split(handover=100) | asleep))
    assert why_no_replay(TWO_CPUS, summed) is None  # not: it sleeps in a sampler


def test_a_training_that_was_stopped_in_its_wait_for_data_has_that_cause():
    """Its batches are made meanwhile; without workers, it is stopped as it makes them."""
    late = split(handover=100) | {"batch__compute_ns": 2 * MS, "batch__made_compute_ns": 2 * MS}
    late |= {"sched__worker_cpu_ns": 99 * MS}
    assert verdict_on(**late).cause is Cause.HANDOVER
    stopped = verdict_on(**late, sched__main_stopped_ns=95 * MS, sched__work_stopped_ns=2 * MS)
    assert (stopped.kind, stopped.cause) == (VerdictKind.LOADER, Cause.STOPPED)
    assert stopped.advice is None
    shown = {row.metric: row.value for row in stopped.evidence}
    assert shown["sched/main_stopped_ns"] == 95 * MS
    main = replace(TWO_CPUS, workers=0)
    makes = split(sleep=100) | {"sched__main_stopped_ns": 95 * MS}
    assert verdict_on(main, **makes).cause is Cause.STOPPED
    in_step = makes | {"sched__work_stopped_ns": 95 * MS}
    assert verdict_on(main, **in_step).cause is Cause.LOADER_SLEEP
