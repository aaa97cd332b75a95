"""What reports say of the first step, which their means leave out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.analysis.runs import loader_bound, write
from tests.samples import batch
from trainobs.analysis.summary import summarize
from trainobs.report import brief, full
from trainobs.runlog.reader import RunLog


def summary_of(path):
    return summarize(RunLog.open(path))


def test_a_first_step_that_is_much_of_the_run_is_told(tmp_path):
    took = {"step__duration_ns": [47.8e9] + [0.1e9] * 59}
    forward = {"phase__forward_ns": took["step__duration_ns"]}
    run = write(tmp_path / "r", batch(range(60), **took, **forward), end={"outcome": "ok"})
    summary = summary_of(run)
    lines = brief.render(summary, 0).splitlines()
    at = lines.index(
        "A step: 100 ms, the mean of 59 steps after the first; of these p95 100 ms, slowest 100 ms"
    )
    assert lines[at + 1] == "  the first step took 47.8 s, 89 % of the time of all steps"
    assert lines[at + 1] in full.render(summary).splitlines()
    step = summary["step"]
    assert (step["first_is_out"], step["first_is_long"], step["first_ns"]) == (True, True, 47.8e9)
    assert step["first_share"] == pytest.approx(47.8 / 53.7)


@pytest.mark.parametrize("first", [[0.19e9] + [0.1e9] * 7, [0.9e9] + [0.1e9] * 99, [np.nan, 0.1e9]])
def test_a_first_step_that_is_short_little_or_unknown_is_not(tmp_path, first):
    table = batch(range(len(first)), step__duration_ns=first, phase__forward_ns=first)
    run = write(tmp_path / "r", table, end={"outcome": "ok"})
    assert "the first step took" not in brief.render(summary_of(run), 0)


@pytest.mark.parametrize(
    ("outcome", "last", "is_told"),
    [("exception: RuntimeError", 9e9, True), ("exception: RuntimeError", 0.2e9, False)]
    + [("ok", 9e9, False), ("exception: RuntimeError", np.nan, False)],
)
def test_a_long_last_step_is_told_where_the_run_failed_in_it(tmp_path, outcome, last, is_told):
    took = [0.1e9] * 21 + [last]
    table = batch(range(22), step__duration_ns=took, phase__forward_ns=took)
    run = write(tmp_path / "r", table, end={"outcome": outcome})
    line = "  the last step, up to the exception, took 9 s, 81 % of the time of all"
    for text in (brief.render(summary_of(run), 0), full.render(summary_of(run))):
        assert (line in text.splitlines()) == is_told
        assert is_told or "the last step" not in text


@pytest.mark.filterwarnings("error")
def test_where_no_other_step_is_known_nothing_is_told_of_the_last(tmp_path):
    took = [np.nan] * 21 + [9e9]
    table = batch(range(22), step__duration_ns=took, phase__forward_ns=took)
    run = write(tmp_path / "r", table, end={"outcome": "exception: RuntimeError"})
    assert "the last step" not in brief.render(summary_of(run), 0)


def test_the_long_page_says_which_numbers_have_the_first_step_in_them(tmp_path):
    told = "  bytes, waits and counts below are of all steps, the first included"
    assert told in full.render(summary_of(loader_bound(tmp_path / "r"))).splitlines()


def test_an_epoch_that_has_the_first_step_alone_is_counted(tmp_path):
    took = {"step__duration_ns": [0.1e9] * 40, "phase__forward_ns": [0.1e9] * 40}
    table = replace(batch(range(40), **took), epoch=np.arange(40, dtype=np.int32))
    summary = summary_of(write(tmp_path / "r", table, end={"outcome": "ok"}))
    assert summary["epochs"] == 40
    assert ": 40 steps in 4 s, 40 epochs, ended: ok" in brief.render(summary, 0)
