"""What the kernel side counts by phase."""

from __future__ import annotations

import time
from contextlib import nullcontext

import numpy as np
import pytest

from trainobs import observe
from trainobs.runlog.reader import RunLog

pytestmark = pytest.mark.needs_bpf


@pytest.mark.parametrize("marks", [True, False])
def test_sleep_in_a_phase_is_known_where_somebody_marks_it(tmp_path, marks):
    with observe(run_dir=tmp_path / "run", quiet=True) as obs:
        for _ in range(4):
            with obs.step(), obs.phase("forward") if marks else nullcontext():
                time.sleep(0.005)
    steps = RunLog.open(tmp_path / "run").rank
    asleep = {
        name: steps.metric(f"sched/{name}_sleep_ns")[1:]
        for name in ("transfer", "forward", "backward", "other")
    }
    marked = {"forward"} if marks else set()
    assert {name for name, ns in asleep.items() if not np.isnan(ns).all()} == {"other"} | marked
    assert asleep["forward" if marks else "other"].min() >= 5e6
    for name in ("offcpu", "runqueue"):
        assert np.isnan(steps.metric(f"sched/wait_{name}_ns")).all(), "no loader is marked"
        assert not np.isnan(steps.metric(f"sched/work_{name}_ns")[1:]).any()
