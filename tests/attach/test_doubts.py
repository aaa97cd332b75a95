"""Processes of which no rate is right, and rules that turn out to be wrong."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attach.target import (
    FETCHES,
    FETCHES_AND_PASSES,
    PASSES,
    PATIENCE_S,
    StepRule,
    Target,
    attached,
    beginning,
)
from trainobs.analysis.summary import summarize
from trainobs.attach.process import look_at
from trainobs.attach.top import Machine, Row, watch
from trainobs.report import brief
from trainobs.runlog.reader import RunLog

pytestmark = pytest.mark.needs_bpf

SETTLED_S = 2.0
"""What a loop does before its first step."""


def test_several_threads_that_train_have_no_rate(
    start: Callable[..., Target], tmp_path: Path
) -> None:
    target = start("two_threads", 600)
    (tmp_path / "go").touch()
    pid = target.pid()
    time.sleep(SETTLED_S)
    done = attached(pid, tmp_path / "run", "--for", "1")
    assert done.returncode == 2
    assert "; several threads step an optimizer" in done.stderr
    assert _row_of(pid).note == "several threads step an optimizer"


@pytest.mark.parametrize(
    ("kind", "rule", "doubt"),
    [
        ("two_threads", FETCHES, "several threads step an optimizer, and these are the steps of"),
        ("summed_up", FETCHES_AND_PASSES, "these are parts of an optimizer's steps"),
    ],
)
def test_what_speaks_against_a_rule_later_is_told(
    start: Callable[..., Target], tmp_path: Path, kind: str, rule: StepRule, doubt: str
) -> None:
    target = start(kind, 600)
    observer = beginning(target.pid(), ["--run-dir", str(tmp_path / "run")])
    time.sleep(1)
    (tmp_path / "go").touch()
    assert observer.stderr is not None
    assert f"process {target.pid()}: {doubt}" in observer.stderr.readline()
    observer.send_signal(signal.SIGINT)
    observer.communicate(timeout=PATIENCE_S)
    report = brief.render(summarize(RunLog.open(tmp_path / "run")), time.time_ns())
    assert f"{target.pid()}: {doubt}" in " ".join(report.split())


def test_one_look_at_all_processes_waits_for_a_rule_that_comes_late(
    start: Callable[..., Target],
) -> None:
    pid = start("bare", 600).pid()
    (rows,) = watch(once=True)
    (row,) = (row for row in rows if row["pid"] == pid)
    assert row["steps"].startswith(PASSES.told)
    assert row["steps_per_s"] > 10


def test_a_process_whose_child_trains_is_told(start: Callable[..., Target], tmp_path: Path) -> None:
    target = start("in_a_child", 600)
    pid = target.pid()
    time.sleep(SETTLED_S)
    done = attached(pid, tmp_path / "run", "--look", "2")
    target.stop()
    (child,) = re.findall(r"it has started (\d+), with torch", done.stderr)
    assert f"do:    trainobs attach {child}" in done.stderr
    target.events()


def _row_of(pid: int) -> Row:
    machine = Machine(lambda: [look_at(pid)])
    try:
        machine.look()
        time.sleep(1)
        machine.look()
        (row,) = machine.rows()
        return row
    finally:
        machine.close()
