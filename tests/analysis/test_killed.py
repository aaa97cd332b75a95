"""What reports tell of processes that the kernel killed for want of memory."""

from __future__ import annotations

import pytest

from tests.analysis.runs import compute_bound
from trainobs.analysis.summary import summarize
from trainobs.report import brief, full
from trainobs.runlog.reader import RunLog


@pytest.mark.parametrize(
    ("kills", "host", "told"),
    [
        (0, {"oom_kills_of": "control group", "memory_limit_bytes": 10**9}, None),
        (None, {}, None),
        (
            2,
            {"oom_kills_of": "control group", "memory_limit_bytes": 10**9},
            "the kernel killed 2 processes of the run's control group (memory limit 1 GB)",
        ),
        (1, {"oom_kills_of": "control group"}, "the kernel killed 1 process of the run's control"),
        (
            1,
            {"oom_kills_of": "machine", "memory_limit_bytes": 10**9},
            "the kernel killed 1 process of this machine, of this run or not",
        ),
    ],
)
def test_what_the_kernel_killed_for_want_of_memory_is_told(tmp_path, kills, host, told):
    summary = summarize(RunLog.open(compute_bound(tmp_path / "run")))
    summary["metrics"]["memory/oom_kill_count"]["sum"] = kills
    summary["host"] |= host
    lines = [
        line for line in brief.render(summary, 0).splitlines() if line.startswith("Out of memory: ")
    ]
    assert [line[15 : 15 + len(told or "")] for line in lines] == ([told] if told else [])
    assert ("  no memory  " + (told or "") in full.render(summary)) is (told is not None)
