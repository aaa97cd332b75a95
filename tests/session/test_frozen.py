"""A training whose control group is frozen, as docker pauses a container."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

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


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of version 2 that tells for how long it was frozen."""
    for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        if (root / "cgroup.controllers").exists() and os.access(root, os.W_OK):
            break
    else:
        pytest.skip("no control group of version 2 can be made here")
    made = root / f"trainobs-frozen-{os.getpid()}"
    made.mkdir()
    try:
        if "frozen_usec" not in told_by(made):
            pytest.skip("Linux tells from 6.18 on for how long a control group was frozen")
        yield made
    finally:
        (made / "cgroup.kill").write_text("1")  # who is frozen, too
        while "populated 1" in (made / "cgroup.events").read_text():
            time.sleep(0.01)
        made.rmdir()


def told_by(group: Path) -> dict[str, int]:
    with suppress(FileNotFoundError):
        lines = (group / "cgroup.stat.local").read_text().splitlines()
        return {name: int(count) for name, count in map(str.split, lines)}
    return {}


def test_the_time_that_a_training_was_frozen_is_no_sleep_of_its_own(tmp_path, group):
    job = Job("-c", JOB, tmp_path / "run", group)
    assert job.line() == "trains"
    for _ in range(FREEZES):
        (group / "cgroup.freeze").write_text("1")
        time.sleep(FROZEN_S)
        (group / "cgroup.freeze").write_text("0")
        time.sleep(0.1)
    _, errors = job.process.communicate(timeout=60)
    assert job.process.returncode == 0, errors
    frozen_ns = told_by(group)["frozen_usec"] * 1000
    assert frozen_ns >= FREEZES * FROZEN_S * 0.9e9
    summary = summarize(RunLog.open(tmp_path / "run"))
    assert summary["metrics"]["sched/frozen_ns"]["sum"] == pytest.approx(frozen_ns, rel=1e-6)
    because = summary["verdict"]["run"]["abstained_because"]
    assert because.endswith("the control group of the run was frozen, as by docker pause")
