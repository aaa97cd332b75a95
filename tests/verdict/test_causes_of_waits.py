"""Causes of a wait for data: stops, and what nobody knows of batches."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        ({"sched__frozen_ns": 30 * MS}, "the control group of the run was frozen"),
        ({"sched__main_stopped_ns": 30 * MS}, "a signal or a debugger had stopped"),
    ],
)
def test_a_wait_in_which_nothing_could_go_on_is_no_bottleneck(kept, told):
    verdict = verdict_on(loader__wait_ns=100 * MS, **kept)
    assert verdict.kind is None
    assert told in verdict.abstained_because
    in_part = {name: ns / 2 for name, ns in kept.items()}
    assert verdict_on(loader__wait_ns=100 * MS, **in_part).kind is VerdictKind.LOADER
