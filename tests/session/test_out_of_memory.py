"""A training whose control group has too little memory for one of its batches."""

from __future__ import annotations

import pytest

from tests import memory_group
from tests.session.jobs import Job
from trainobs.analysis.summary import summarize
from trainobs.report import brief
from trainobs.runlog.reader import RunLog

LIMIT = 768 << 20

JOB = """
import sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, Dataset
from trainobs import observe

class Data(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        time.sleep(0.01)
        if index == int(sys.argv[3]):
            held = [bytearray(b"x" * (16 << 20)) for _ in range(256)]
        return torch.zeros(4)

Path(sys.argv[2], "cgroup.procs").write_text("0")
with observe(run_dir=sys.argv[1], quiet=True) as obs:
    for batch in obs.loader(DataLoader(Data(), num_workers=1)):
        with obs.step(), obs.phase("forward"):
            time.sleep(0.01)
"""


@pytest.mark.parametrize("large", [0, 150], ids=["the first batch", "a later one"])
def test_a_worker_that_the_kernel_kills_is_told_though_that_ends_the_run(tmp_path, large):
    with memory_group.limited(LIMIT) as group:
        memory_group.without_swap(group)
        job = Job("-c", JOB, tmp_path / "run", group, large)
        _, errors = job.process.communicate(timeout=120)
        assert "RuntimeError: DataLoader worker" in errors
        kills = memory_group.kills(group)
    assert kills >= 1
    summary = summarize(RunLog.open(tmp_path / "run"))
    assert summary["outcome"] == "exception: RuntimeError"
    assert summary["metrics"]["memory/oom_kill_count"]["sum"] == kills
    told = f"of the run's control group (memory limit {LIMIT / 1e6:.0f} MB)"
    assert told in brief.render(summary, 0)
