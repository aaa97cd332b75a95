"""Of a long run the page shows means of several steps, and a line for the slowest of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.samples import busy_run
from trainobs.core.text import duration


def test_a_long_run_is_read_level_by_level(write_run, open_page):
    opened = open_page(write_run(8_000))
    hint = opened.page.text_content("#steps .readout")
    assert "mean of" in hint
    opened.page.locator("#steps figure").focus()
    for _ in range(6):
        opened.page.get_by_role("button", name="zoom in").click()
    opened.page.locator("#steps .readout", has_not_text="mean of").wait_for()
    opened.page.keyboard.press("ArrowRight")


def test_a_line_of_slowest_steps_that_is_cut_off_says_where(write_run, open_page):
    steps = busy_run(8_000)
    even = np.full(8_000, 50e6)
    for longest, told in ((50e6, "slowest of them. "), (9e9, "slowest of them, cut off at ")):
        taken = {"step/duration_ns": np.where(np.arange(8_000) == 5_000, longest, even)}
        one = replace(steps, cells=None, columns=steps.columns | taken)
        opened = open_page(write_run(name=f"{longest:g}", steps=one))
        assert told in opened.page.text_content("#steps .readout")


def test_means_over_windows_are_those_of_the_steps_without_the_first(write_run, open_page):
    steps = busy_run(4099)  # in windows of 4, of which the last has 3
    rows = np.arange(4099)
    slow = np.where(rows == 0, 1e12, np.where(rows >= 4096, 1e9, 0))
    taken = {name: steps.columns[name] + slow for name in ("step/duration_ns", "obs/cpu_ns")}
    steps = replace(steps, cells=None, columns=steps.columns | taken)
    opened = open_page(write_run(steps=steps))
    assert "mean of up to 4 steps" in opened.page.text_content("#steps .readout")
    caption = opened.page.text_content("#step caption")
    assert caption.endswith(duration(taken["step/duration_ns"][1:].mean()))
    legend = opened.page.text_content("#observing .legend")
    assert legend.endswith(duration(taken["obs/cpu_ns"][1:].mean()))
    opened.page.locator("#steps figure").focus()
    readout = opened.page.locator("#steps .readout")
    for key, of in (("Home", "steps from 0, mean of 3"), ("End", "steps from 4096, mean of 3")):
        opened.page.keyboard.press(key)
        assert readout.text_content().startswith(of)
