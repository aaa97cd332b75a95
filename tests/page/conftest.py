"""Pages of runs in a real Chromium, which must not ask anybody for anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from scripts.chromium import chromium
from tests.samples import busy_run, info
from trainobs.analysis.comparison.two_sides import compare
from trainobs.analysis.view import RunView
from trainobs.core.records import StepTable
from trainobs.report.html import comparison_page, page
from trainobs.runlog.reader import RunLog
from trainobs.runlog.writer import SEAL_STEPS, RunLogSink

FACTS = {
    "host": {"hostname": "node7", "kernel": "6.18", "usable_cpu_count": 8},
    "settings": {"loader_workers": 4},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture
def write_run(tmp_path) -> Callable[..., Path]:
    """Writes a run of busy steps, or of those of `steps`; each name began when no other did."""
    return writing_to(tmp_path)


def writing_to(directory: Path) -> Callable[..., Path]:
    began: dict[str, int] = {}

    def write(
        count: int = 300,
        name: str = "run",
        rank: int = 0,
        steps: StepTable | None = None,
        ended: bool = True,
        outcome: str = "ok",
        **facts,
    ) -> Path:
        path = directory / name
        sink = RunLogSink(path, rank)
        about = info(rank=rank, **{**FACTS, **facts})
        wall_ns = about.clock["wall_ns"] + began.setdefault(name, 1 + len(began))
        about.clock = {**about.clock, "wall_ns": wall_ns}
        sink.begin(about)
        if steps is None and count:
            steps = busy_run(count, seed=rank)
        if steps is not None:
            for first in range(0, len(steps), SEAL_STEPS):
                part = steps.select(slice(first, first + SEAL_STEPS))
                of_part = np.isin(steps.batches["for_step"], part.step)
                sink.write(replace(part, batches=steps.batches[of_part]))
                sink.flush()
        if ended:
            sink.end({"outcome": outcome})
        else:
            sink.flush()
        return path

    return write


class Opened:
    """A page in the browser, what it asked for, and what it complained of."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.faults: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on(
            "console", lambda said: self.faults.append(said.text) if said.type == "error" else None
        )

    def open(self, url: str) -> None:
        self.page.goto(url)
        self.page.wait_for_selector("[data-state=done], [data-state=failed]", timeout=60_000)


@pytest.fixture
def open_page(browser, tmp_path) -> Iterator[Callable[..., Opened]]:
    """Opens the page of a run as a file; at the end, asserts that nothing went wrong in it."""
    with opened_by(browser) as new:

        def open_it(run_dir: Path, most_bytes: int = 4_500_000) -> Opened:
            file = tmp_path / "page.html"
            file.write_text(page(RunView(RunLog.open(run_dir)), most_bytes))
            made = new()
            made.open(file.as_uri())
            return made

        yield open_it


class Busy(NamedTuple):
    """A run of 300 busy steps, and its page."""

    run: Path
    steps: StepTable
    opened: Opened


@pytest.fixture(scope="module")
def opened_once(browser, tmp_path_factory) -> Iterator[Busy]:
    directory, steps = tmp_path_factory.mktemp("busy"), busy_run(300)
    run, file = writing_to(directory)(steps=steps), directory / "page.html"
    file.write_text(page(RunView(RunLog.open(run))))
    with opened_by(browser) as new:
        opened = new()
        opened.open(file.as_uri())
        yield Busy(run, steps, opened)


@pytest.fixture
def busy(opened_once) -> Iterator[Busy]:
    """For tests that leave the page as it was, but for what is focused, open or scrolled."""
    opened_once.opened.page.evaluate("scrollTo(0, 0)")
    yield opened_once
    assert opened_once.opened.faults == []


@pytest.fixture
def open_comparison(browser, tmp_path) -> Iterator[Callable[..., Opened]]:
    """Opens the page that compares the runs of two sides."""
    with opened_by(browser) as new:

        def open_it(*sides: list[Path]) -> Opened:
            file = tmp_path / "comparison.html"
            found = compare(*([RunLog.open(run) for run in side] for side in sides))
            file.write_text(comparison_page(found))
            made = new()
            made.open(file.as_uri())
            return made

        yield open_it


@contextmanager
def opened_by(browser: Browser, own: str = "file:") -> Iterator[Callable[[], Opened]]:
    """Makes pages that may ask only those whose URLs begin with `own`."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened: list[Opened] = []

    def new() -> Opened:
        opened.append(Opened(context.new_page()))
        return opened[-1]

    yield new
    context.close()
    for one in opened:
        assert one.faults == []
        asked = [url for url in one.requests if not url.startswith((own, "blob:", "data:"))]
        assert asked == [], "a page asked somebody for something"
