"""The page that compares runs, as one file in Chromium."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.analysis.runs import every_part
from tests.page.test_file import HOSTILE, contrast, numbers
from tests.samples import busy_run
from trainobs.analysis.comparison.two_sides import compare
from trainobs.cli import main
from trainobs.core.text import duration, measured
from trainobs.report.comparison import render
from trainobs.runlog.reader import RunLog

LOADER = {"serial": 1, "workers": 4, "prefetch_factor": 2, "batch_size": 8}


@pytest.fixture
def sides(write_run):
    """Three runs a side. Those of B have no forward, and other loaders."""
    old, new = [], []
    for i in range(3):
        steps = busy_run(60, seed=i)
        busy = {"sched/others_cpu_ratio": np.full(60, 0.05)}
        steps = replace(steps, columns=steps.columns | busy)
        old.append(write_run(name=f"a{i}", steps=steps, loaders=[LOADER | {"batch_size": 4}]))
        forward = steps.columns["phase/forward_ns"]
        fewer = {
            "phase/forward_ns": np.zeros(60),
            "step/duration_ns": steps.columns["step/duration_ns"] - forward,
            "sched/others_cpu_ratio": np.full(60, 0.25),
        }
        steps = replace(steps, columns=steps.columns | fewer)
        new.append(write_run(name=f"b{i}", steps=steps, loaders=[LOADER]))
    return old, new


def compared(sides):
    return compare(*([RunLog.open(run) for run in side] for side in sides))


def signed(ns: float) -> str:
    return f"{'−' if ns < 0 else '+'}{duration(abs(ns))}"


def test_the_numbers_are_those_of_compare(sides, open_comparison):
    found = compared(sides)
    opened = open_comparison(*sides)
    assert opened.page.text_content("#compare .kind") == render(found).split("\n")[0]
    assert found["answer"] == "faster"
    rows = numbers(opened, "#compare-step")
    parts = [one for one in every_part(found["parts"]) if any(one["ns"])]
    assert len(rows) == len(parts) + 1
    for one in parts:
        low, high = map(signed, one["interval_ns"])
        claim = "within noise"
        if one["claim"]:
            claim = "B takes less" if one["difference_ns"] < 0 else "B takes more"
        times = [*map(duration, one["ns"]), signed(one["difference_ns"]), f"{low} to {high}"]
        assert rows[one["label"]] == [*(text for text in times), claim]
    assert rows["forward"][-1] == "B takes less"
    assert rows["backward"][-1] == "within noise"
    *times, ratio, claim = rows["the whole step"]
    assert times[:2] == list(map(duration, found["step_ns"]))
    # A step of B has more samples: it may well take longer.
    assert ratio.endswith(" times as fast, per sample")
    assert claim == "B takes less, per sample"
    assert numbers(opened, "#compare-conditions") == {
        one["label"]: [measured(value, one["unit"]) for value in one["values"]]
        for one in found["conditions"]
    }
    assert numbers(opened, "#compare-settings")["batch_size"] == ["4", "8"]
    assert found["why_not"] in opened.page.text_content("#compare-settings")
    assert str(sides[0][2]) in opened.page.text_content("#compare-runs")


def test_the_bars_are_on_one_scale_and_have_the_colours_of_the_table(sides, open_comparison):
    found = compared(sides)
    opened = open_comparison(*sides)
    widths = "bars => bars.map(bar => bar.getBoundingClientRect().width)"
    a, b = opened.page.eval_on_selector_all("#compare-step .bar", widths)
    assert b / a == pytest.approx(found["step_ns"][1] / found["step_ns"][0], abs=0.005)
    colour = "all => all.map(one => getComputedStyle(one).backgroundColor)"
    bar = opened.page.eval_on_selector_all("#compare-step figure:first-child span", colour)
    table = opened.page.eval_on_selector_all("#compare-step th i", colour)
    assert bar == table
    assert "rgb(136, 204, 238)" in bar  # forward, as on the page of a run
    assert (
        len(opened.page.query_selector_all("#compare-step figure:nth-child(2) span"))
        == len(bar) - 1
    )
    style = "e => [getComputedStyle(e).color, getComputedStyle(document.body).backgroundColor]"
    for scheme in ("light", "dark"):
        opened.page.emulate_media(color_scheme=scheme)
        for place in ("h1", "#compare .kind", "td", "td .muted"):
            ink, paper = opened.page.eval_on_selector(place, style)
            assert contrast(ink, paper) >= 4.5, (scheme, place, ink, paper)  # WCAG 2.2, level AA


def test_equal_runs_are_within_noise_and_names_are_text(write_run, open_comparison):
    steps = busy_run(60)
    old = write_run(name="<img src=x onerror=alert(1)>", steps=steps, settings={"torch_threads": 1})
    settings = {"torch_threads": HOSTILE}
    new = write_run(name="\u202eevil", steps=steps, settings=settings)
    with (new / "rank=0" / "kernel-00000.parquet").open("wb") as damaged:
        damaged.write(b"PAR1")  # so that a note names the run
    opened = open_comparison([old], [new])
    assert "within noise" in opened.page.text_content("#compare .kind")
    claims = {cells[-1] for cells in numbers(opened, "#compare-step").values()}
    assert claims == {"within noise"}
    assert "Of these two alone, B is" in opened.page.text_content("#compare")
    text = opened.page.text_content("body")
    assert "<img src=x onerror=alert(1)>" in text
    assert "\\u202eevil that are gone or cannot be read: 1" in text
    assert "<script>alert(1)</script>\\u202e\\u001b[31m" in text
    assert not {"\u202e", "\x1b"} & set(text)
    assert opened.page.locator("img").count() == 0


def test_the_commands_write_the_page(sides, tmp_path, capsys):
    (old, *_), (new, *_) = sides
    files = [tmp_path / "compare.html", tmp_path / "after.html"]
    assert main(["compare", str(old), str(new), "--html", str(files[0])]) == 0
    assert str(files[0]) in capsys.readouterr().out
    assert main(["report", str(new), "--after", str(old), "--html", str(files[1])]) == 0
    pages = [file.read_text() for file in files]
    assert pages[0] == pages[1]
    assert "Which is faster" in pages[0]
    assert main(["compare", str(old), str(old), "--html", str(files[0])]) == 2
    assert files[0].read_text() == pages[0]
