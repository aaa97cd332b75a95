"""The wait for data and its parts: one time of each, wherever they are told."""

from __future__ import annotations

import pytest

from tests.analysis.runs import LOADER, steps_of, write
from trainobs.analysis.comparison import compare
from trainobs.analysis.summary import summarize
from trainobs.report import brief, page
from trainobs.runlog.reader import RunLog

MS = 1e6


def test_what_loaders_take_to_start_is_shown_beside_the_hand_over(tmp_path):
    parts = {"device": 0.5, "cpu_wait": 0, "compute": 0.5, "sleep": 0, "handover": 9}
    split = {f"loader__{part}_ns": [ms * MS] * 200 for part, ms in parts.items()}
    started = {"loader__start_stop_ns": [8 * MS] * 200}
    facts = {"settings": {"loader_workers": 1}, "loaders": [LOADER], "end": {"outcome": "ok"}}
    run = write(tmp_path / "run", steps_of(10, 20, **split, **started), **facts)
    lines = brief.render(summarize(RunLog.open(run)), 0).splitlines()
    (starting,) = (line for line in lines if line.startswith("  wait: loaders starting and ending"))
    assert starting.split()[-4:] == ["8", "ms", "27", "%"]
    (handed,) = (
        line for line in lines if line.startswith("  wait: batches made, not yet received")
    )
    assert handed.split()[-4:] == ["1", "ms", "3.3", "%"]
    causes = "loaders starting and ending 80 %, batches made, not yet received 10 %"
    assert f"  what was waited for: {causes}" in lines
    full = page.render(summarize(RunLog.open(run))).splitlines()
    assert any(line.startswith("    batches made, not yet received") for line in full)
    assert any(line.startswith("    loaders starting and ending") for line in full)


def test_what_any_batch_costs_is_no_part_of_the_wait(tmp_path):
    """The report, its causes and the comparison of runs tell the same of it."""
    parts = {"device": 0, "cpu_wait": 0, "compute": 0, "sleep": 0, "handover": 10}
    split = {f"loader__{part}_ns": [ms * MS] * 200 for part, ms in parts.items()}
    more = {"loader__start_stop_ns": [4 * MS] * 200, "sched__wait_offcpu_ns": [9 * MS] * 200}
    facts = {"settings": {"loader_workers": 1}, "loaders": [LOADER], "end": {"outcome": "ok"}}
    run = write(tmp_path / "run", steps_of(10, 20, **split, **more), **facts)
    lines = brief.render(summarize(RunLog.open(run)), 0).splitlines()
    (waited,) = (line for line in lines if line.startswith("  waiting for data"))
    assert waited.split()[3:5] == ["9", "ms"]
    causes = "batches made, not yet received 56 %, loaders starting and ending 44 %"
    assert f"  what was waited for: {causes}" in lines
    more["sched__wait_offcpu_ns"] = [10 * MS] * 200  # there nothing is taken over
    other = write(tmp_path / "other", steps_of(10, 20, **split, **more), **facts)
    runs = RunLog.open(run), RunLog.open(other)
    runs[1].info["clock"]["wall_ns"] = 1
    found = compare(runs[:1], runs[1:])["parts"]
    ns = {part["name"]: part["ns"] for part in found}
    assert ns["loader/wait_ns"] == pytest.approx([9 * MS, 10 * MS])
    assert ns["loader/taking_ns"] == pytest.approx([MS, 0])
    causes = {part["name"]: part["ns"][0] for part in found[0]["parts"]}
    assert causes["loader/handover_ns"] == pytest.approx(5 * MS)
    assert causes["loader/start_stop_ns"] == pytest.approx(4 * MS)


def test_where_taking_over_is_unknown_it_is_that_of_the_other_steps(tmp_path):
    off = {"sched__wait_offcpu_ns": [10 * MS, None] * 100}
    facts = {"settings": {"loader_workers": 1}, "loaders": [LOADER], "end": {"outcome": "ok"}}
    runs = [RunLog.open(write(tmp_path / name, steps_of(10, 20, **off), **facts)) for name in "ab"]
    runs[1].info["clock"]["wall_ns"] = 1
    ns = {part["name"]: part["ns"] for part in compare(runs[:1], runs[1:])["parts"]}
    assert ns["loader/wait_ns"] == pytest.approx([10 * MS, 10 * MS])
    assert "loader/taking_ns" not in ns
