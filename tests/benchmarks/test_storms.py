"""benchmarks/storms: the table of the page keeps what a new file of results does not know."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.page import filled
from benchmarks.storms import run

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "storms-2026-11-24.json"


def found(tried: int, date: str) -> dict[str, object]:
    return {"date": date, "words": "kills", "found": {"tried": tried, "troubles": []}}


def rows(table: str) -> list[str]:
    return [row.split(" | ")[1] for row in table.splitlines()[2:]]


def test_a_storm_alone_leaves_the_other_rows():
    before = run.table({"kills": found(500, "2026-01-01"), "disks": found(100, "2026-01-01")})
    after = run.table({"kills": found(7, "2026-01-02")}, before)
    assert (rows(before), rows(after)) == (["500", "100"], ["7", "100"])


@pytest.mark.parametrize(("date", "tried"), [("2026-01-01", "7"), ("2025-12-31", "500")])
def test_the_newer_row_stays(date, tried):
    before = run.table({"kills": found(500, "2026-01-01")})
    assert rows(run.table({"kills": found(7, date)}, before)) == [tried]


def test_a_row_that_no_storm_has_is_not_dropped():
    before = run.table({"kills": found(500, "2026-01-01")}).replace("| runs killed", "| runs kiled")
    with pytest.raises(ValueError, match="runs kiled"):
        run.table({}, before)


def test_the_command_fills_the_page(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "reliability.md"
    page.write_text(PAGE.read_text())
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "_found", lambda storm: {"tried": 7, "troubles": []})
    results = tmp_path / "new.json"
    monkeypatch.setattr(sys, "argv", ["run", "kills", "--page", "--results", str(results)])
    run.main()
    before, after = (filled(each, "storms").splitlines() for each in (PAGE, page))
    changed = [number for number in range(len(before)) if before[number] != after[number]]
    assert len(before) == len(after)
    assert [after[number].split(" | ")[1] for number in changed] == ["7"]


def test_the_rows_of_the_page_are_those_of_the_results():
    known = json.loads(RESULTS.read_bytes())
    page = filled(PAGE, "storms")
    assert run.table(known, page) == page
