"""The page as a tab of a real TensorBoard, in Chromium."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from tests.architecture.rooms import SOURCE
from tests.packages.conftest import installed, serving
from tests.page.conftest import FACTS, opened_by
from tests.samples import busy_run, info
from trainobs.analysis.comparison.two_sides import compare
from trainobs.report.comparison import render
from trainobs.runlog.reader import RunLog
from trainobs.runlog.writer import RunLogSink

__all__ = ["installed"]


@pytest.fixture
def open_tab(browser, installed, tmp_path):
    """Opens the tab of a TensorBoard on `tmp_path`; gives the frame of the tab."""
    paths = os.pathsep.join(map(str, (installed, SOURCE)))
    command = [sys.executable, "-m", "tensorboard.main"]
    logs = tmp_path / "output"
    with (
        serving(command, tmp_path, logs, PYTHONPATH=paths) as board,
        opened_by(browser, f"http://127.0.0.1:{board.port}/") as new,
    ):

        def open_it():
            opened = new()
            opened.page.goto(f"http://127.0.0.1:{board.port}/#trainobs")
            opened.page.wait_for_selector("iframe")
            frame = opened.page.frames[-1]
            frame.wait_for_selector("#shown[data-state=done]", timeout=60_000)
            return frame

        yield open_it


def test_the_tab_shows_each_run_that_is_chosen_and_compares_it(write_run, open_tab):
    old, new = write_run(200, "first"), write_run(300, "second")
    frame = open_tab()
    assert "300 steps" in frame.text_content("header")  # the newest one
    assert frame.locator("#compared *").count() == 0
    frame.select_option("#with", label="first")
    frame.wait_for_selector("#compared[data-state=done]")
    found = compare([RunLog.open(old)], [RunLog.open(new)])
    assert frame.text_content("#compare .kind") == render(found).split("\n")[0]
    assert f"A is {old}; B is {new}." in frame.text_content("#compare")
    assert frame.locator("#step .bar").count() == 1  # the page of the run is below
    frame.select_option("#run", label="first")  # which cannot be compared with itself
    frame.wait_for_selector("header:has-text('200 steps')")
    frame.wait_for_selector("#shown[data-state=done]")
    assert frame.input_value("#with") == ""
    assert frame.locator("#compared *").count() == 0
    assert frame.text_content("h1") == "first"
    assert frame.locator("#step .bar").count() == 1


def test_a_run_that_goes_on_is_followed(write_run, tmp_path, open_tab):
    write_run(60, "old")
    steps = busy_run(120)
    sink = RunLogSink(tmp_path / "live")
    sink.begin(info(**FACTS))
    sink.write(steps.select(np.arange(120) < 50))
    sink.flush()
    frame = open_tab()
    assert "50 steps" in frame.text_content("header")
    frame.select_option("#with", label="old")
    frame.wait_for_selector("#compare-runs td:text-is('49')")
    sink.write(steps.select(np.arange(120) >= 50))
    sink.end({"outcome": "ok"})
    frame.wait_for_selector("header:has-text('120 steps')", timeout=20_000)
    frame.wait_for_selector("#compare-runs td:text-is('119')", timeout=20_000)
    assert "ended: ok" in frame.text_content("header >> nth=1")


def test_64_kilosteps_open_in_a_tab(write_run, open_tab):
    write_run(65_536, "long")
    frame = open_tab()
    frame.locator("#steps figure").focus()
    for _ in range(8):
        frame.get_by_role("button", name="zoom in").click()
    frame.locator("#steps .readout", has_not_text="mean of").wait_for()
