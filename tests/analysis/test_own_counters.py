"""What programs of a user's counted, from the run log to the report and the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.analysis.runs import steps_of, write
from trainobs.analysis.summary import summarize
from trainobs.analysis.view import OWN_GROUP, RunView
from trainobs.core.own_counter import OWN_ROLES, OwnCounter, of_role
from trainobs.report import brief, full
from trainobs.runlog.reader import RunLog

LOCKS = OwnCounter("lock taken", "calls", "locks.c")
WAITED = OwnCounter("lock wait", "ns", "locks.c")
OFF = OwnCounter("marks", "marks", "off.c")
COUNT = 200
STATES = {"locks.c": "on", "off.c": "cannot load off.c: no such tracepoint"}


def columns_of(counter: OwnCounter, *by_role: float) -> dict[str, np.ndarray]:
    """Equal steps, with what each role did in one."""
    parts = {of_role(counter.name, r): n for r, n in zip(OWN_ROLES, by_role, strict=True)}
    return {name: np.full(COUNT, n) for name, n in {counter.name: sum(by_role), **parts}.items()}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    nan = float("nan")
    own = columns_of(LOCKS, 2, 0, 10, 0) | columns_of(WAITED, 1e6, 0, 0, 0)
    own |= columns_of(OFF, nan, nan, nan, nan)
    table = steps_of(1, 9)
    table = replace(table, columns=table.columns | own)
    facts = {"counters": [LOCKS, WAITED, OFF], "capabilities": STATES}
    return write(tmp_path / "run", table, end={"outcome": "ok"}, **facts)


def test_the_run_log_tells_unit_and_title_and_an_unknown_count_is_null(run: Path) -> None:
    info = json.loads((run / "run.json").read_text())
    assert info["counters"][1] == {"title": "lock wait", "unit": "ns", "probe": "locks.c"}
    stored = pq.read_table(run / "rank=0/steps-00000.parquet")
    assert stored["probe/lock_taken{role=worker}"].to_pylist() == [10] * COUNT
    assert stored["probe/lock_taken"].to_pylist() == [12] * COUNT
    assert stored["probe/marks"].null_count == COUNT
    rank = RunLog.open(run).ranks[0]
    assert rank.counters == (LOCKS, WAITED, OFF)
    assert np.isnan(rank.metric("probe/marks")).all()


def test_a_run_without_any_says_nothing_of_them(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain", steps_of(1, 9))
    assert "counters" not in json.loads((plain / "run.json").read_text())
    assert OWN_GROUP not in RunView.open(plain).head()["groups"]
    assert summarize(RunLog.open(plain))["own"] == []


def test_the_report_tells_each_by_role_and_an_unknown_one_is_a_dash(run: Path) -> None:
    summary = summarize(RunLog.open(run))
    assert summary["metrics"]["probe/lock_wait"] == {
        **{"unit": "ns", "sum": COUNT * 1_000_000, "mean": 1e6},
        **{"p50": 1e6, "p95": 1e6, "max": 1e6},
    }
    long = full.render(summary)
    told = [line.split() for line in long.partition("Own probes")[2].splitlines()[1:6]]
    assert told == [
        ["lock", "taken", "(calls)", "12", "12", "12", "2.40", "k"],
        ["main", "2", "2", "2", "400"],
        ["worker", "10", "10", "10", "2", "k"],
        ["lock", "wait", "1", "ms", "1", "ms", "1", "ms", "200", "ms"],
        ["marks", "-", "-", "-", "-"],
    ]
    line = "Own probes, a step: lock taken 12 calls, lock wait 1 ms"
    assert line in brief.render(summary, 0).splitlines()
    assert "off.c: cannot load off.c: no such tracepoint" in long


def test_the_page_has_a_group_of_them(run: Path) -> None:
    view = RunView.open(run)
    head = view.head()
    names = head["groups"][OWN_GROUP]
    assert names[:2] == ["probe/lock_taken", "probe/lock_taken{role=main}"]
    assert {head["metrics"][name]["chart"] for name in names} == {
        "lock taken",
        "lock wait",
        "marks",
    }
    piece = view.piece(f"steps/{OWN_GROUP}/1/0")
    assert set(piece["columns"]["probe/lock_taken"]) == {12.0}
    assert "probe/marks" not in piece["columns"]


def test_words_that_nobody_wrote_are_no_counters(run: Path) -> None:
    info = json.loads((run / "run.json").read_text())
    info["counters"] = [
        {"title": "\x1b[2J", "unit": "calls", "probe": "x"},
        {"title": "lock taken"},
    ]
    (run / "run.json").write_text(json.dumps(info))
    assert RunLog.open(run).ranks[0].counters == ()
