"""A training whose control group is frozen, as docker pauses a container."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests import freezer
from tests.session.jobs import Job
from trainobs.analysis.summary import summarize
from trainobs.runlog.reader import RunLog

FREEZES = 2
FROZEN_S = 0.8

JOB = """
import sys, time
from pathlib import Path
from trainobs import observe

Path(sys.argv[2], "cgroup.procs").write_text("0")
with observe(run_dir=sys.argv[1], quiet=True) as obs:
    end = time.monotonic() + 3
    step = 0
    while time.monotonic() < end:
        with obs.step(), obs.phase("forward"):
            time.sleep(0.01)
        step += 1
        if step == 5:
            print("trains", flush=True)
"""


def frozen_ns_of(group: Path) -> int | None:
    """For how long a group was frozen; None: this kernel does not tell."""
    try:
        lines = (group / "cgroup.stat.local").read_text().splitlines()
    except FileNotFoundError:
        return None
    told = dict(map(str.split, lines))
    return int(told["frozen_usec"]) * 1000 if "frozen_usec" in told else None


def test_the_time_that_a_training_was_frozen_is_no_sleep_of_its_own(tmp_path):
    with freezer.group() as group:
        if frozen_ns_of(group) is None:
            pytest.skip("Linux tells from 6.18 on for how long a control group was frozen")
        job = Job("-c", JOB, tmp_path / "run", group)
        assert job.line() == "trains"
        for _ in range(FREEZES):
            with freezer.frozen(group):
                time.sleep(FROZEN_S)
            time.sleep(0.1)
        _, errors = job.process.communicate(timeout=60)
        assert job.process.returncode == 0, errors
        frozen_ns = frozen_ns_of(group)
    assert frozen_ns >= FREEZES * FROZEN_S * 0.9e9
    summary = summarize(RunLog.open(tmp_path / "run"))
    assert summary["metrics"]["sched/frozen_ns"]["sum"] == pytest.approx(frozen_ns, rel=1e-6)
    because = summary["verdict"]["run"]["abstained_because"]
    assert because.endswith("the control group of the run was frozen, as by docker pause")
