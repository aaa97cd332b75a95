"""Sleep of the training thread in a step: in which phase it is told to be."""

from __future__ import annotations

import numpy as np
import pytest

from tests.verdict.constructed import MARKS, MS, STEPS, TWO_CPUS, columns, every, verdict_on
from trainobs.verdict.metric_names import STEP
from trainobs.verdict.rules import judge
from trainobs.verdict.sentence import sentence
from trainobs.verdict.summed_steps import SummedSteps
from trainobs.verdict.verdict import VerdictKind


@pytest.mark.parametrize(
    ("upload_ms", "other_ms", "where"),
    [(70, 0, "upload"), (58, 12, "upload"), (40, 40, "no phase, logging or a phase of its own")],
)
def test_sleep_in_a_phase_of_the_users_has_its_name_where_it_is_surely_in_that(
    upload_ms, other_ms, where
):
    asleep = {"sched__other_sleep_ns": 60 * MS, "sched__work_offcpu_ns": 60 * MS}
    named = columns(phase__forward_ns=20 * MS, phase__other_ns=other_ms * MS, **asleep)
    named["phase/upload_ns"] = np.full(STEPS, upload_ms * MS * 1.0)
    named[STEP] = named[STEP] + named["phase/upload_ns"]
    summed = SummedSteps()
    summed.add(named)
    verdict = judge(summed, TWO_CPUS)
    assert verdict.kind is VerdictKind.SLEEP
    assert f", in {where}" in sentence(verdict)


def test_sleep_in_logging_is_called_so():
    asleep = {"sched__other_sleep_ns": 60 * MS, "sched__work_offcpu_ns": 60 * MS}
    logging = verdict_on(phase__logging_ns=70 * MS, **asleep)
    assert ", in logging" in sentence(logging)
    assert ", in no phase" in sentence(verdict_on(phase__other_ns=70 * MS, **asleep))


def test_sleep_of_some_steps_is_no_work_that_nobody_marks():
    asleep = every(8, 400 * MS)
    work = [62 * MS + ns * 1.8 for ns in asleep]
    loop = {"phase__other_ns": work, "sched__other_sleep_ns": asleep, "without": MARKS}
    told = sentence(verdict_on(**loop, sched__work_offcpu_ns=asleep, sched__main_offcpu_ns=asleep))
    assert told.startswith("asleep: 50 ms a step")
