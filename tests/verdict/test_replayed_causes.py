"""What a loader with workers waits for, where its run can be replayed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.replay.constructed import STEPS, replay, run
from tests.verdict.constructed import MS, TWO_CPUS, columns
from trainobs.verdict.causes import find
from trainobs.verdict.parts import Situation, parts_of
from trainobs.verdict.summed_steps import SummedSteps
from trainobs.verdict.verdict import Cause, VerdictKind

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
