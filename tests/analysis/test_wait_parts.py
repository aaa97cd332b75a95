"""The wait for data and its parts: one time of each, wherever they are told."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.analysis.runs import LOADER, steps_of, write
from trainobs.analysis.comparison.part_means import RunMeans, parts_of
from trainobs.analysis.comparison.two_sides import compare
from trainobs.analysis.step_time import TAKING
from trainobs.analysis.summary import summarize
from trainobs.report import brief, brief_lines, full
from trainobs.runlog.reader import RunLog
from trainobs.verdict.metric_names import LOADER as LOADER_WAIT
from trainobs.verdict.metric_names import SPLIT, START

MS = 1e6


def waits(path: Path, workers: int, parts: dict[str, float], **more: float | list) -> Path:
    """A run of 200 steps that wait, in ms, for parts of loading; with more columns, in ms or ns."""
    columns = {f"loader__{part}_ns": [ms * MS] * 200 for part, ms in parts.items()}
    columns |= {name: of if isinstance(of, list) else [of * MS] * 200 for name, of in more.items()}
    facts = {"settings": {"loader_workers": workers}, "loaders": [LOADER], "end": {"outcome": "ok"}}
    return write(path, steps_of(10, 20, **columns), **facts)


def test_what_loaders_take_to_start_is_shown_beside_the_hand_over(tmp_path):
    parts = {"device": 0.5, "cpu_wait": 0, "compute": 0.5, "sleep": 0, "handover": 9}
    run = waits(tmp_path / "run", 1, parts, loader__start_stop_ns=8)
    lines = brief.render(summarize(RunLog.open(run)), 0).splitlines()
    (starting,) = (line for line in lines if line.startswith("  wait: loaders starting and ending"))
    assert starting.split()[-4:] == ["8", "ms", "27", "%"]
    (handed,) = (
        line for line in lines if line.startswith("  wait: batches made, not yet received")
    )
    assert handed.split()[-4:] == ["1", "ms", "3.3", "%"]
    causes = "loaders starting and ending 80 %, batches made, not yet received 10 %"
    assert f"  what was waited for: {causes}" in lines
    told = full.render(summarize(RunLog.open(run))).splitlines()
    assert any(line.startswith("    batches made, not yet received") for line in told)
    assert any(line.startswith("    loaders starting and ending") for line in told)


def test_what_any_batch_costs_is_no_part_of_the_wait(tmp_path):
    """The report, its causes and the comparison of runs tell the same of it."""
    parts = {"device": 0, "cpu_wait": 0, "compute": 0, "sleep": 0, "handover": 10}
    more = {"loader__start_stop_ns": 4, "sched__wait_offcpu_ns": 9}
    run = waits(tmp_path / "run", 1, parts, **more)
    lines = brief.render(summarize(RunLog.open(run)), 0).splitlines()
    (waited,) = (line for line in lines if line.startswith("  waiting for data"))
    assert waited.split()[3:5] == ["9", "ms"]
    causes = "batches made, not yet received 56 %, loaders starting and ending 44 %"
    assert f"  what was waited for: {causes}" in lines
    more["sched__wait_offcpu_ns"] = 10  # there nothing is taken over
    other = waits(tmp_path / "other", 1, parts, **more)
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
    runs = [RunLog.open(waits(tmp_path / name, 1, {}, **off)) for name in "ab"]
    runs[1].info["clock"]["wall_ns"] = 1
    ns = {part["name"]: part["ns"] for part in compare(runs[:1], runs[1:])["parts"]}
    assert ns["loader/wait_ns"] == pytest.approx([10 * MS, 10 * MS])
    assert "loader/taking_ns" not in ns


@pytest.mark.parametrize("seed", range(40))
def test_shares_of_what_was_waited_for_never_add_up_to_more_than_all(seed):
    """Means of parts are of other steps than the mean of the wait, and need not fit together."""
    rng = np.random.default_rng(seed)
    names = (*SPLIT, START)
    parts = {name: rng.exponential(10.0 ** rng.integers(3, 9)) for name in names}
    waited = rng.exponential(10.0 ** rng.integers(6, 9))
    taking = rng.exponential(10.0 ** rng.integers(4, 8))
    step = {"mean_ns": 2 * waited, "waited": parts, "parts": {LOADER_WAIT: waited, TAKING: taking}}
    summary = {"loader": None, "step": {**step, "first_is_out": False}}
    nothing = {"unnamed_bytes": None, "mapped_data": None, "has_libaio": False}
    nothing |= {"metrics": {}, "latency": {}, "level": "timing"}
    (line,) = (
        line
        for line in brief_lines.loader_and_storage({**summary, **nothing, "attached": None}, 2)
        if line.startswith("Loader: waited for")
    )
    shares = [float(share) for share in re.findall(r"([\d.]+) %", line)]
    assert shares
    assert sum(shares) <= 101, "but for rounding"


def test_a_hand_over_that_is_shorter_than_taking_over_leaves_nothing_unknown(tmp_path):
    """Workers that are uneven: a batch that is there is taken over while another one is made."""
    parts = {"device": 0, "cpu_wait": 0, "compute": 0, "sleep": 9.3, "handover": 0.7}
    run = waits(tmp_path / "run", 4, parts, loader__start_stop_ns=0.7, sched__wait_offcpu_ns=9)
    lines = brief.render(summarize(RunLog.open(run)), 0).splitlines()
    assert "  what was waited for: asleep otherwise 93 %, loaders starting and ending 7 %" in lines
    means = [RunMeans.from_run(RunLog.open(run))]
    (waited,) = (part for part in parts_of(means) if part.name == LOADER_WAIT)
    causes = {part.name: part.runs[0].all for part in waited.parts}
    assert causes["loader/handover_ns"] == 0
    assert sum(causes.values()) == pytest.approx(waited.runs[0].all)
