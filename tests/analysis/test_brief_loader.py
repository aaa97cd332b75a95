"""What the report of 25 lines says of a loader."""

from __future__ import annotations

import pytest

from tests.analysis.runs import LOADER, loader_bound
from trainobs.analysis.summary import summarize
from trainobs.report import brief
from trainobs.runlog.reader import RunLog

MS = 1e6
NOW = 1_700_000_000_000_000_000 + 3600 * 10**9


def summary_of(path):
    return summarize(RunLog.open(path))


@pytest.mark.parametrize(
    ("tensors", "handed_ms", "told"),
    [(40, 8, True), (40, 1, False), (2, 8, False), (None, 8, False)],
)
def test_many_tensors_are_told_of_where_their_hand_over_is_waited_for(
    tmp_path, tensors, handed_ms, told
):
    run = loader_bound(tmp_path / "r", loaders=[{**LOADER, "tensors_per_batch": tensors}])
    summary = summary_of(run)
    summary["step"]["waited"] |= {
        "loader/handover_ns": handed_ms * MS,
        "loader/compute_ns": (9.5 - handed_ms) * MS,
    }
    line = "  a batch has 40 tensors, and each is handed over by itself"
    assert (line in brief.render(summary, NOW).splitlines()) == told


def test_a_slow_sampler_whose_sum_of_squares_is_above_any_time_is_no_damage(tmp_path):
    timed = {"batches": 30, "ns": 30 * 10**9, "ns2": 30 * 10**18, "cpu_ns": 30 * 10**9}
    run = loader_bound(tmp_path / "r", loaders=[{**LOADER, "sampler": timed}])
    assert "the sampler takes 1 s a batch" in brief.render(summary_of(run), NOW)


@pytest.mark.parametrize(("cpu_ms", "told"), [(90, True), (9, False), (None, False)])
def test_a_sampler_is_told_of_where_it_takes_part_of_the_step(tmp_path, cpu_ms, told):
    took = {} if cpu_ms is None else dict.fromkeys(("ns", "cpu_ns"), cpu_ms * int(MS))
    timed = {"batches": 30, **took} if took else None
    summary = summary_of(loader_bound(tmp_path / "r", loaders=[{**LOADER, "sampler": timed}]))
    line = "  of the training thread, the sampler takes 3 ms a batch"
    assert (line in brief.render(summary, NOW).splitlines()) == told
