"""docs/metrics.md comes from the catalogue."""

from __future__ import annotations

from pathlib import Path

from trainobs.core.catalogue import CATALOGUE
from trainobs.core.catalogue_page import page

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_in_docs_is_up_to_date():
    hint = "run: python -m trainobs.core.catalogue_page > docs/metrics.md"
    assert PAGE.read_text() == page() + "\n", hint


def test_every_metric_has_one_row():
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    names = [row.split("`")[1] for row in rows]
    assert names[: len(CATALOGUE)] == [metric.name for metric in CATALOGUE]


def test_every_room_has_one_section():
    headings = [line for line in page().splitlines() if line.startswith("## ")]
    assert len(headings) == len(set(headings))
