"""The tab on runs that go on and servers that fail: the plugin's own answers, by a small server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import numpy as np
import pytest
from playwright.sync_api import Page, Route
from tensorboard.plugins import base_plugin

from tests.page.conftest import FACTS, Opened, opened_by
from tests.samples import busy_run, info
from trainobs.runlog.writer import RunLogSink
from trainobs_tensorboard import run_logs
from trainobs_tensorboard.plugin import TrainobsPlugin

FRAME = b"""<!doctype html><html><body></body>
<script type="module">import { render } from "/index.js"; render();</script></html>"""
COUNTED = """
globalThis.charts = 0;
for (const [name, by] of [["addEventListener", 1], ["removeEventListener", -1]]) {
  const own = window[name];
  window[name] = (...all) => { if (all[0] === "dppxchange") charts += by; own.apply(window, all); };
}
"""
REFRESH_MS = 5000


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def open_tab(browser, tmp_path, monkeypatch) -> Iterator[Callable[..., Opened]]:
    """Opens the tab on the runs in `tmp_path`; time in it goes on by `later` alone."""
    monkeypatch.setattr(run_logs, "FRESH_S", 0)
    apps = TrainobsPlugin(base_plugin.TBContext(logdir=str(tmp_path))).get_plugin_apps()

    def respond(environ, start_response):
        path = environ["PATH_INFO"]
        if path.startswith("/static/"):
            return apps["/static/*"](environ, start_response)
        if path in apps:
            return apps[path](environ, start_response)
        start_response("200 OK", [("Content-Type", "text/html")])
        return [FRAME]

    server = make_server("127.0.0.1", 0, respond, _Server, _Quiet)
    serving = threading.Thread(target=server.serve_forever, args=(0.02,))
    serving.start()
    address = f"http://127.0.0.1:{server.server_port}/"
    with opened_by(browser, address) as new:

        def open_it(prepare: Callable[[Page], object] = lambda page: None) -> Opened:
            opened = new()
            opened.page.clock.install()
            opened.page.add_init_script(COUNTED)
            prepare(opened.page)
            opened.page.goto(address)
            return opened

        yield open_it
    server.shutdown()
    serving.join()
    server.server_close()


class Live:
    """A run that goes on."""

    def __init__(self, path, steps: int) -> None:
        self.steps = busy_run(steps)
        self.written = 0
        self.sink = RunLogSink(path)
        self.sink.begin(info(**FACTS))
        self.sink.flush()

    def write(self, count: int) -> None:
        part = self.steps.select(slice(self.written, self.written + count))
        of_part = np.isin(self.steps.batches["for_step"], part.step)
        self.sink.write(replace(part, batches=self.steps.batches[of_part]))
        self.sink.flush()
        self.written += count


def shown(opened: Opened, steps: int) -> None:
    """Waits until all of a run of so many steps is drawn."""
    opened.page.wait_for_selector(f"#shown #steps p:text('Of {steps - 1:,} steps after the first')")


def refreshed(opened: Opened, steps: int) -> None:
    """The same of a run that goes on: its summary is made anew only now and then."""
    told = opened.page.locator(f"#shown #steps p:text('Of {steps - 1:,} steps after the first')")
    for _ in range(300):
        later(opened)
        if told.count():
            return
        time.sleep(0.1)
    raise AssertionError(steps)


def later(opened: Opened) -> None:
    opened.page.clock.run_for(REFRESH_MS)


def test_a_run_that_was_opened_before_its_first_step_shows_its_steps(open_tab, tmp_path):
    live = Live(tmp_path / "live", 60)
    opened = open_tab()
    opened.page.wait_for_selector("main:has-text('No step was recorded yet')")
    live.write(60)
    later(opened)
    shown(opened, 60)
    assert "No step was recorded" not in opened.page.text_content("main")
    assert opened.page.locator("#step .bar, #steps canvas, #lanes canvas").count() == 3


def test_while_the_verdict_is_made_the_page_says_that_it_reads(write_run, open_tab):
    write_run(60, "long")
    held: list[Route] = []
    opened = open_tab(
        lambda page: page.route("**/data?run=long&path=summary", lambda route: held.append(route))
    )
    opened.page.wait_for_selector("#steps canvas")
    assert opened.page.text_content("#shown [role=status]") == "Reading the run ..."
    while not held:
        opened.page.wait_for_timeout(50)
    held[0].continue_()
    shown(opened, 60)
    assert "Reading the run" not in opened.page.text_content("#shown")


def test_batches_that_come_later_are_shown(open_tab, tmp_path):
    live = Live(tmp_path / "live", 60)
    with_batches = live.steps
    live.steps = replace(live.steps, batches=live.steps.batches[:0])
    live.write(20)
    opened = open_tab()
    shown(opened, 20)
    assert opened.page.locator("#lanes").count() == 0
    live.steps = with_batches
    live.write(40)
    later(opened)
    opened.page.wait_for_selector("#lanes canvas")
    assert opened.page.locator("#steps").count() == 1


def test_a_refresh_keeps_what_is_open_and_the_focus_and_leaves_no_chart_behind(open_tab, tmp_path):
    live = Live(tmp_path / "live", 200)
    live.write(50)
    opened = open_tab()
    shown(opened, 50)
    page = opened.page
    charts = page.evaluate("charts")
    page.locator("#observed summary", has_text="Every number").click()
    page.locator("#storage details summary").first.click()
    page.locator("#storage figure").first.focus()
    page.keyboard.press("ArrowRight")
    for _ in range(3):
        live.write(50)
        refreshed(opened, live.written)
        assert page.locator("#observed details[open], #storage details[open]").count() == 2
        assert page.evaluate("document.activeElement.matches('#storage figure')")
    page.keyboard.press("ArrowRight")
    assert "step 2:" in page.locator("#storage .readout").first.text_content()
    assert page.evaluate("charts") == charts
    assert page.locator("#shown canvas").count() >= charts - 1


def test_charts_of_a_run_that_is_left_are_destroyed(write_run, open_tab):
    write_run(40, "first")
    write_run(50, "second")
    opened = open_tab()
    shown(opened, 50)
    charts = opened.page.evaluate("charts")
    opened.page.select_option("#run", label="first")
    shown(opened, 40)
    assert opened.page.evaluate("charts") == charts


def test_the_run_that_was_chosen_last_is_shown(write_run, open_tab):
    write_run(40, "slow")
    write_run(50, "quick")
    held: list[Route] = []
    opened = open_tab(
        lambda page: page.route("**/data?run=slow&path=head", lambda route: held.append(route))
    )
    shown(opened, 50)
    opened.page.select_option("#run", label="slow")
    opened.page.wait_for_timeout(50)
    opened.page.select_option("#run", label="quick")
    shown(opened, 50)
    for route in held:
        route.continue_()
    opened.page.wait_for_timeout(200)
    shown(opened, 50)
    later(opened)
    assert opened.page.locator("#shown h1").count() == 1
    assert "quick" in opened.page.text_content("#shown h1")


def test_what_failed_is_told_until_it_succeeds(open_tab, tmp_path):
    Live(tmp_path / "live", 30).write(30)
    fails = {"runs", "head"}

    def answer(route: Route) -> None:
        if any(name in route.request.url for name in fails):
            route.abort()
        else:
            route.continue_()

    opened = open_tab(lambda page: page.route("**/*", answer))
    opened.page.wait_for_selector("nav .error:has-text('TensorBoard does not answer.')")
    fails.remove("runs")
    later(opened)
    opened.page.wait_for_selector("#shown .error:has-text('TensorBoard does not answer.')")
    assert opened.page.locator("nav .error").count() == 0
    fails.clear()
    later(opened)
    shown(opened, 30)
    assert opened.page.locator(".error").count() == 0
    fails.add("head")  # and in the midst of it
    later(opened)
    opened.page.wait_for_selector("#shown .error")
    assert "30 steps" in opened.page.text_content("#shown header")
    fails.clear()
    later(opened)
    opened.page.wait_for_selector("#shown .error", state="detached")
    opened.faults.clear()  # Chromium's own, of what was aborted


def test_a_slow_answer_is_not_asked_for_twice(open_tab, tmp_path):
    live = Live(tmp_path / "live", 60)
    live.write(30)
    opened = open_tab()
    shown(opened, 30)
    held: list[Route] = []
    opened.page.route("**/data?run=live&path=head", lambda route: held.append(route))
    live.write(30)
    for _ in range(3):
        later(opened)
    opened.page.wait_for_timeout(50)
    assert len(held) == 1
    held[0].continue_()
    opened.page.unroute("**/data?run=live&path=head")
    refreshed(opened, 60)


def test_the_list_is_read_again_and_says_when_it_is_not_complete(write_run, open_tab, monkeypatch):
    opened = open_tab()
    opened.page.wait_for_selector("nav:has-text('There is no run log')")
    write_run(30, "first")
    later(opened)
    shown(opened, 30)
    write_run(40, "second")
    later(opened)
    opened.page.wait_for_selector("#run option:text-is('second')", state="attached")
    assert opened.page.input_value("#run") == "first"
    assert opened.page.locator("nav", has_text="There may be more runs").count() == 0
    monkeypatch.setattr(run_logs, "RUNS", 1)
    later(opened)
    opened.page.wait_for_selector("nav:has-text('There may be more runs')")
    assert opened.page.input_value("#run") == "first"  # which was not found this time


def test_rows_that_come_late_are_not_drawn_over_newer_ones(write_run, open_tab):
    write_run(5000, "long")
    held: list[Route] = []
    opened = open_tab(
        lambda page: page.route("**path=steps%2Fparts%2F1%2F*", lambda route: held.append(route))
    )
    shown(opened, 5000)
    caption = opened.page.locator("#step caption").first
    for _ in range(2):
        opened.page.get_by_role("button", name="zoom in").click()
    opened.page.wait_for_timeout(50)
    assert held
    opened.page.get_by_role("button", name="whole run").click()
    for route in held:
        route.continue_()
    opened.page.wait_for_timeout(200)
    assert "without the first" in caption.text_content()


def test_a_window_that_is_pulled_larger_is_drawn_once(write_run, open_tab):
    write_run(30)
    opened = open_tab()
    shown(opened, 30)
    opened.page.evaluate("""() => {
      globalThis.drawn = 0;
      const observed = new MutationObserver((all) => { drawn += all.length; });
      observed.observe(document.querySelector("#steps figure"), { childList: true });
      for (let i = 0; i < 20; i++) dispatchEvent(new Event("resize"));
    }""")
    opened.page.clock.run_for(1000)
    opened.page.wait_for_function("drawn > 0")
    opened.page.wait_for_timeout(50)
    assert opened.page.evaluate("drawn") == 1
