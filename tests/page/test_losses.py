"""The page says what its numbers lack, where a reader begins."""

from __future__ import annotations

import shutil

from trainobs.analysis.summary import summarize
from trainobs.report.rank_rows import unended
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


def test_a_rank_that_was_killed_is_named_as_in_the_report(write_run, open_page):
    for rank, ended in enumerate((True, False, True)):
        run = write_run(40, rank=rank, world_size=3, ended=ended)
    told = unended(summarize(RunLog.open(run)))
    assert told == "not ended, or killed: rank 1"
    assert open_page(run).page.text_content("#ranks .advice") == f"{told}."
