"""The page in windows of any width, and on paper."""

from __future__ import annotations

import re

import pytest

from trainobs.analysis.view import RunView
from trainobs.report.html import page

CUT = """all => all.filter(one => {
  const [own, label] = [one.getBoundingClientRect(), one.lastChild];
  const isPart = label.clientWidth && label.scrollWidth > label.clientWidth;
  return isPart || own.right > one.parentNode.getBoundingClientRect().right;
}).map(one => one.textContent)"""
BROKEN = """all => all.filter(one => {
  const words = document.createRange();
  words.selectNodeContents(one);
  return !one.textContent.includes(" ") && words.getClientRects().length > 1;
}).map(one => one.textContent)"""


BROKEN_WORDS = """all => all.filter(one => {
  const words = document.createRange();
  words.selectNodeContents(one);
  return words.getClientRects().length > one.textContent.trim().split(/\\s+/).length + 2;
}).map(one => one.textContent)"""


@pytest.mark.parametrize("width", [1280, 700, 400, 320])
def test_no_label_of_a_bar_is_cut_and_no_word_of_a_table(busy, width):
    shown = busy.opened.page
    shown.set_viewport_size({"width": width, "height": 900})
    cut = shown.eval_on_selector_all("#step .bar em", CUT)
    assert cut == []
    assert shown.locator("#step .bar em:visible").count() > 0
    assert shown.eval_on_selector_all("thead th", BROKEN) == []
    assert shown.eval_on_selector_all("tbody th, tbody td", BROKEN_WORDS) == []
    shown.wait_for_function("document.body.scrollWidth <= innerWidth")  # charts come a moment later
    shown.set_viewport_size({"width": 1280, "height": 900})


SPLIT = """all => all.filter(one => {
  const value = document.createRange();
  value.selectNodeContents(one);
  return /^\\S*\\d\\S* [a-zA-Z%]{1,2}$/.test(one.textContent) && value.getClientRects().length > 1;
}).map(one => one.textContent)"""


def test_a_number_stays_beside_its_unit(busy):
    shown = busy.opened.page
    shown.set_viewport_size({"width": 400, "height": 900})
    assert shown.locator("td", has_text=re.compile(r"\d ms$")).count() > 3
    assert shown.eval_on_selector_all("td", SPLIT) == []
    shown.set_viewport_size({"width": 1280, "height": 900})


def test_without_javascript_it_says_what_to_do(browser, write_run, tmp_path):
    (tmp_path / "page.html").write_text(page(RunView.open(write_run(10))))
    context = browser.new_context(java_script_enabled=False)
    opened = context.new_page()
    opened.goto((tmp_path / "page.html").as_uri())
    assert "trainobs report" in opened.locator("p").inner_text()
    context.close()


DARKEST = """() => {
  const canvas = document.querySelector("#steps canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width / 20, canvas.height);
  const lights = [];
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 250) lights.push(data[i]);
  return Math.min(...lights);
}"""
EXACT = "one => getComputedStyle(one).printColorAdjust"


def test_on_paper_charts_fit_are_dark_on_white_and_keep_their_colours(busy):
    shown = busy.opened.page
    shown.emulate_media(color_scheme="dark", media="print")
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")
    widths = shown.eval_on_selector_all("canvas", "all => all.map(one => one.clientWidth)")
    assert max(widths) <= 700
    ink = shown.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink')")
    drawn = shown.evaluate(DARKEST)
    assert ink == "#1b1f24"
    assert drawn < 60, "labels of axes are of that ink"
    assert shown.locator("#step .bar > span").first.evaluate(EXACT) == "exact"
    assert not shown.locator(".buttons").is_visible()
    shown.emulate_media(color_scheme="light", media="screen")
    shown.evaluate("dispatchEvent(new Event('afterprint'))")
    shown.wait_for_function(
        "Math.max(...Array.from(document.querySelectorAll('canvas'), c => c.clientWidth)) > 1000"
    )
