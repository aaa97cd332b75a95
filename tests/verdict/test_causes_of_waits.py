"""Causes of a wait for data: stops, and what nobody knows of batches."""

from __future__ import annotations

from tests.verdict.constructed import MS, TWO_CPUS, columns, split, verdict_on
from trainobs.verdict.replayable import why_no_replay
from trainobs.verdict.summed_steps import SummedSteps
from trainobs.verdict.verdict import Cause


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
