"""The page in windows of any width, and on paper."""

from __future__ import annotations

import re

import pytest

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
    page = busy.opened.page
    page.set_viewport_size({"width": width, "height": 900})
    cut = page.eval_on_selector_all("#step .bar em", CUT)
    assert cut == []
    assert page.locator("#step .bar em:visible").count() > 0
    assert page.eval_on_selector_all("thead th", BROKEN) == []
    assert page.eval_on_selector_all("tbody th, tbody td", BROKEN_WORDS) == []
    page.wait_for_function("document.body.scrollWidth <= innerWidth")  # charts come a moment later
    page.set_viewport_size({"width": 1280, "height": 900})


SPLIT = """all => all.filter(one => {
  const value = document.createRange();
  value.selectNodeContents(one);
  return /^\\S*\\d\\S* [a-zA-Z%]{1,2}$/.test(one.textContent) && value.getClientRects().length > 1;
}).map(one => one.textContent)"""


def test_a_number_stays_beside_its_unit(busy):
    page = busy.opened.page
    page.set_viewport_size({"width": 400, "height": 900})
    assert page.locator("td", has_text=re.compile(r"\d ms$")).count() > 3
    assert page.eval_on_selector_all("td", SPLIT) == []
    page.set_viewport_size({"width": 1280, "height": 900})


DARKEST = """() => {
  const canvas = document.querySelector("#steps canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width / 20, canvas.height);
  const lights = [];
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 250) lights.push(data[i]);
  return Math.min(...lights);
}"""
EXACT = "one => getComputedStyle(one).printColorAdjust"


def test_on_paper_charts_fit_are_dark_on_white_and_keep_their_colours(busy):
    page = busy.opened.page
    page.emulate_media(color_scheme="dark", media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    widths = page.eval_on_selector_all("canvas", "all => all.map(one => one.clientWidth)")
    assert max(widths) <= 700
    ink = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink')")
    drawn = page.evaluate(DARKEST)
    assert ink == "#1b1f24"
    assert drawn < 60, "labels of axes are of that ink"
    assert page.locator("#step .bar > span").first.evaluate(EXACT) == "exact"
    assert not page.locator(".buttons").is_visible()
    page.emulate_media(color_scheme="light", media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.wait_for_function(
        "Math.max(...Array.from(document.querySelectorAll('canvas'), c => c.clientWidth)) > 1000"
    )
