"""Real runs that change as they go on: of these less is predicted, and nobody else is blamed."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from torch.utils.data import DataLoader, Dataset

from benchmarks.faults.groups import Unavailable, group
from trainobs import observe
from trainobs.analysis.summary import summarize
from trainobs.analysis.verdicts import summed_steps
from trainobs.replay.predict import Replay
from trainobs.runlog.reader import RunLog
from trainobs.verdict.facts import facts_from
from trainobs.verdict.replayable import replay_of

pytestmark = pytest.mark.needs_bpf


class Slow(Dataset):
    """Items that take 5 ms, the first time at least."""

    def __init__(self, *, keeps: bool) -> None:
        self._kept: dict[int, int] | None = {} if keeps else None

    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> int:
        if self._kept is None or index not in self._kept:
            time.sleep(0.005)
        if self._kept is not None:
            self._kept[index] = index
        return index


def train(run_dir, *, keeps: bool) -> None:
    loader = DataLoader(Slow(keeps=keeps), 8)
    with observe(run_dir=run_dir, quiet=True) as obs:
        for _ in range(3):
            for _ in obs.loader(loader):
                with obs.step(), obs.phase("forward"):
                    time.sleep(0.002)


def replay_of_run(run_dir) -> Replay:
    run = RunLog.open(run_dir)
    replay = replay_of(summed_steps(run).run, facts_from(run.info))
    assert replay is not None
    return replay


def test_a_data_set_that_keeps_what_it_made_is_not_predicted_in_workers(tmp_path):
    """Whether a replay fits is another question, which depends on what else the machine does."""
    train(tmp_path / "kept", keeps=True)
    kept = replay_of_run(tmp_path / "kept")
    assert "the data set may keep them, in memory" in kept.unknown["workers"]
    assert not kept.can_try("workers")
    assert kept.can_try("latency")
    train(tmp_path / "made", keeps=False)
    assert replay_of_run(tmp_path / "made").can_try("workers")


JOB = """
import sys, time
from pathlib import Path
from trainobs import observe
Path(sys.argv[2], "cgroup.procs").write_text("0")
with observe(run_dir=sys.argv[1], quiet=True) as obs:
    for step in range(80):
        with obs.step(), obs.phase("forward"):
            until = time.thread_time() + 0.004
            while time.thread_time() < until:
                pass
        if step == 30:
            Path(sys.argv[2], sys.argv[3]).write_text(sys.argv[4])
"""


def test_a_quota_that_is_set_in_the_middle_of_a_run_is_the_cause(tmp_path):
    try:
        with group("cpu", {}) as folder:
            is_old = (folder / "cpu.cfs_quota_us").exists()
            quota = ("cpu.cfs_quota_us", "5000") if is_old else ("cpu.max", "5000 100000")
            command = [sys.executable, "-c", JOB, tmp_path / "run", folder, *quota]
            subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    except Unavailable as why:
        pytest.skip(str(why))
    found = summarize(RunLog.open(tmp_path / "run"))["verdict"]["run"]
    assert (found["kind"], found["cause_code"]) == ("compute-bound", "quota")
    assert found["advice"] is None
