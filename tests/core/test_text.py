"""Numbers as people read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainobs.core import text

NUMBERS = Path(__file__).with_name("numbers.json")
"""Function -> arguments, and what it says; the page's says the same (tests/page/test_format.py)."""


@pytest.mark.parametrize(("name", "cases"), json.loads(NUMBERS.read_text()).items())
def test_numbers_are_said_as_in_the_table(name, cases):
    assert [getattr(text, name)(*given) for given, _ in cases] == [said for _, said in cases]


def test_a_bar_shows_anything_above_zero():
    assert [text.bar(share, 10) for share in (0, 0.001, 0.5, 1, 3)] == [
        "",
        "#",
        "#####",
        "##########",
        "##########",
    ]
