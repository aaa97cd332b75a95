"""The page says what its numbers lack, where a reader begins."""

from __future__ import annotations

import shutil


def test_what_the_numbers_lack_stands_above_the_verdict(write_run, open_page):
    run = write_run(40)
    assert "Lost:" not in open_page(run).page.text_content("#verdict")
    first = run / "rank=0" / "steps-00000.parquet"
    shutil.copy(first, run / "rank=0" / "steps-00001.parquet")
    text = open_page(run).page.text_content("#verdict")
    assert "VerdictLost: steps are there twice, or those of another run" in text
    first.write_bytes(b"")
    assert "1 file of steps cannot be read" in open_page(run).page.text_content("#verdict")
