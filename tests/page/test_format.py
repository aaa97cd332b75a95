"""Numbers on the page are said as in the report: by the table of tests/core."""

from __future__ import annotations

import json

from tests.core.test_text import NUMBERS
from trainobs.report.html import STATIC

SAID = """async ([module, table]) => {
  const own = await import(URL.createObjectURL(new Blob([module], { type: "text/javascript" })));
  return Object.fromEntries(Object.entries(table).map(([name, cases]) =>
    [name, cases.map(([given]) => [given, own[name](...given)])]));
}"""


def test_numbers_are_said_as_in_the_table(browser):
    table = json.loads(NUMBERS.read_text())
    page = browser.new_page()
    assert page.evaluate(SAID, [(STATIC / "format.js").read_text(), table]) == table
    page.close()
