"""What a loader with workers waits for, where its run can be replayed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.replay.constructed import STEPS, replay, run
from tests.verdict.constructed import MS, TWO_CPUS, columns
from trainobs.replay.simulate import simulate
from trainobs.verdict.causes import find
from trainobs.verdict.parts import Situation, parts_of
from trainobs.verdict.summed_steps import SummedSteps
from trainobs.verdict.verdict import Cause, VerdictKind


def test_what_new_workers_open_is_the_cause_and_no_work_of_the_loader():
    """Passes of 8 steps of 20 ms, in which both workers compute for 200 ms before they begin."""
    place = np.arange(STEPS) % 8
    opened = run(
        workers=2,
        tells_opening=True,
        make_cpu=np.where(place < 2, 205 * MS, 5 * MS),
        is_first=(place == 0) & (np.arange(STEPS) > 0),
    )
    opened = replace(opened, step=simulate(opened, shared=False))
    summed = SummedSteps()
    made = {f"phase__{name}_ns": ms * MS for name, ms in PHASES.items()}
    summed.add(columns(**made, loader__wait_ns=25 * MS))
    for tells, cause in ((True, Cause.START), (False, Cause.TRANSFORM)):
        parts = parts_of(summed.mean(), TWO_CPUS)
        now = Situation(
            summed.mean(), parts, TWO_CPUS, replay(replace(opened, tells_opening=tells))
        )
        found = find(VerdictKind.LOADER, now)
        assert found
        assert found.cause is cause


PHASES = {"transfer": 0, "forward": 10, "backward": 8, "optimizer": 2, "other": 0}


@pytest.mark.parametrize(
    ("others", "lacked", "cause"),
    [(0.02, 15, Cause.TRANSFORM), (0.8, 5, Cause.TRANSFORM), (0.8, 15, None), (0.8, 20, "others")],
)
def test_what_others_take_of_the_cpus_is_no_work_of_the_loader(others, lacked, cause):
    """Batches of 30 ms beside a step of 20, on one CPU: 50 ms, and 30 if there were others."""
    made = {f"phase__{name}_ns": ms * MS for name, ms in PHASES.items()}
    summed = SummedSteps()
    summed.add(
        columns(
            **made,
            loader__wait_ns=30 * MS,
            sched__worker_runqueue_ns=lacked * MS,
            sched__others_cpu_ratio=others,
        )
    )
    parts = parts_of(summed.mean(), TWO_CPUS)
    trace = run(cpus=1.0, most_cpus=1.0, step=np.full(STEPS, 50 * MS))
    now = Situation(summed.mean(), parts, TWO_CPUS, replay(trace))
    found = find(VerdictKind.LOADER, now)
    assert (found and found.cause) == (Cause.OTHERS if cause == "others" else cause)
