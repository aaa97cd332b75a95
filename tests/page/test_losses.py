"""The page says what its numbers lack, where a reader begins."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.samples import busy_run
from trainobs.analysis.summary import summarize
from trainobs.core.records import SETUP
from trainobs.report import brief, full
from trainobs.report.losses import killed
from trainobs.report.rank_rows import endings
from trainobs.runlog.reader import RunLog


def test_what_the_numbers_lack_stands_above_the_verdict(write_run, open_page):
    run = write_run(40)
    assert "Lost:" not in open_page(run).page.text_content("#verdict")
    first = run / "rank=0" / "steps-00000.parquet"
    shutil.copy(first, run / "rank=0" / "steps-00001.parquet")
    text = open_page(run).page.text_content("#verdict")
    assert "VerdictLost: steps are there twice, or those of another run" in text
    first.write_bytes(b"")
    assert "1 file of steps cannot be read" in open_page(run).page.text_content("#verdict")


@pytest.mark.parametrize("has_steps", [True, False])
def test_what_the_kernel_killed_for_want_of_memory_is_told(write_run, open_page, has_steps):
    steps = busy_run(40)
    steps.columns["memory/oom_kill_count"] = 2.0 * (np.arange(40) == 0)
    if not has_steps:
        steps = replace(steps.select(slice(0, 1)), step=np.array([SETUP]))
        steps = replace(steps, batches=busy_run(1).batches)
    host = {"oom_kills_of": "control group", "memory_limit_bytes": 10**9}
    run = write_run(steps=steps, host=host)
    told = killed(summarize(RunLog.open(run)))
    assert told == "the kernel killed 2 processes of the run's control group (memory limit 1 GB)"
    page = open_page(run).page
    assert f"Out of memory: {told}." in page.text_content("#verdict" if has_steps else ".sentence")


def test_a_rank_that_was_killed_is_named_as_in_the_report(write_run, open_page):
    for rank, ended in enumerate((True, False, True)):
        run = write_run(40, rank=rank, world_size=3, ended=ended)
    told = endings(summarize(RunLog.open(run)))
    assert told == "not ended, or killed: rank 1"
    assert open_page(run).page.text_content("#ranks .advice") == f"{told}."


def test_a_rank_that_failed_is_named_though_the_others_went_on_to_the_end(write_run, open_page):
    outcomes = ("ok", "exception: ValueError", "ok", "exception: ValueError")
    for rank, outcome in enumerate(outcomes):
        run = write_run(0 if rank else 40, rank=rank, world_size=4, outcome=outcome)
    summary = summarize(RunLog.open(run))
    told = "ranks 1, 3 ended: exception: ValueError"
    assert endings(summary) == told
    assert told in brief.render(summary, 0)
    assert f"  ranks      {told}" in full.render(summary)
    assert open_page(run).page.text_content("#ranks .advice") == f"{told}."


def test_a_rank_that_ended_as_the_one_that_is_told_of_is_not_named(write_run):
    for rank, how in enumerate(("ConnectionError", "ValueError", "ConnectionError")):
        run = write_run(40, rank=rank, world_size=3, outcome=f"exception: {how}")
    assert endings(summarize(RunLog.open(run))) == "rank 1 ended: exception: ValueError"
