"""What the kernel side counts by phase."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import nullcontext

import numpy as np
import pytest

from trainobs import observe
from trainobs.runlog.reader import RunLog

pytestmark = pytest.mark.needs_bpf

STOPPED = """
import os, subprocess, sys, threading, time
from trainobs import observe

def spin():
    end = time.monotonic() + 1
    while time.monotonic() < end:
        pass

with observe(run_dir=sys.argv[1], quiet=True) as obs:
    for step in range(4):
        with obs.step(), obs.phase("forward"):
            if step == 2:
                me = os.getpid()
                stop = f"sleep 0.1; kill -STOP {me}; sleep 0.4; kill -CONT {me}"
                child = subprocess.Popen(["sh", "-c", stop])
                {"spins": spin, "waits": lambda: threading.Event().wait(1)}[sys.argv[2]]()
"""


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


@pytest.mark.parametrize("how", ["spins", "waits"])
def test_a_stop_is_told_from_a_sleep(tmp_path, how):
    """In a process of its own: a shell would take the terminal from one that is stopped."""
    subprocess.run(
        [sys.executable, "-c", STOPPED, tmp_path / "run", how],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    steps = RunLog.open(tmp_path / "run").rank
    for part in ("main", "work"):
        stopped = steps.metric(f"sched/{part}_stopped_ns")[1:]
        assert stopped.tolist() == [0, 0, pytest.approx(0.4e9, rel=0.5), 0]
        assert stopped[2] >= 0.39e9
    assert steps.metric("sched/forward_sleep_ns")[3] >= 0.39e9
    awaited = steps.metric("sched/main_await_ns")[3]
    assert awaited < 0.65e9, "who is stopped waits for no thread"
    assert bool(awaited > 0.05e9) is (how == "waits")
