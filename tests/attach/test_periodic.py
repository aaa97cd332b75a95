"""Processes without torch: the period that they have, or none."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests import kernel_state
from tests.attach.target import PATIENCE_S, ROOT, THINGS, Target, attached
from tests.kernel.own import source
from trainobs.analysis.summary import summarize
from trainobs.attach.process import DO_ROOT, find
from trainobs.attach.run import loaded
from trainobs.core.errors import AttachError
from trainobs.core.text import duration
from trainobs.probes import obstacles
from trainobs.report import brief, full
from trainobs.runlog.reader import RunLog

pytestmark = pytest.mark.needs_bpf

RIGHT = 0.02
"""How far a period may lie from the truth."""


def periods_of(run_dir: Path) -> list[dict[str, float]]:
    """Those in a run log."""
    facts = json.loads((run_dir / "run.json").read_text())["settings"]["attached"]
    found: list[dict[str, float]] = facts["periods"]
    return found


def check_periods(run_dir: Path, target: Target) -> list[float]:
    """Hold each against the truth in its time; what they are, in ns."""
    target.stop()
    truth = np.array([at_ns for _, at_ns, _ in target.events()])
    found = periods_of(run_dir)
    for one in found:
        within = truth[(truth >= one["begin_ns"]) & (truth <= one["end_ns"])]
        mean = (one["end_ns"] - one["begin_ns"]) / len(within)
        # A turn is marked somewhere in it, so that at the edges one more or less may count.
        assert one["period_ns"] == pytest.approx(mean, rel=RIGHT + 1 / len(within))
    return [one["period_ns"] for one in found]


@pytest.mark.parametrize(
    "kind", ["files", "numpy_training", "jittered", "logged", "batches_of_files"]
)
def test_a_loop_has_its_period(start: Callable[..., Target], tmp_path: Path, kind: str) -> None:
    target = start(kind, 600, module=THINGS)
    words = ["--for", "2", "--look", "60", "--probe", str(source(tmp_path))]
    done = attached(target.pid(), tmp_path / "run", *words)
    assert done.returncode == 0, done.stderr
    assert "cannot use own.c; it counts nothing, and the training goes on" in done.stderr
    assert check_periods(tmp_path / "run", target)


@pytest.mark.parametrize(
    "kind",
    [
        *("noise", "idle", "two_timers", "accumulated", "alternating", "interleaved"),
        *("random_sleeps", "computing", "server"),
    ],
)
def test_what_has_no_period_of_its_own_has_none(
    start: Callable[..., Target], tmp_path: Path, kind: str
) -> None:
    target = start(kind, 600, module=THINGS)
    done = attached(target.pid(), tmp_path / "run", "--for", "1", "--look", "5")
    assert done.returncode == 2, done.stderr
    assert "found: no stable period found: " in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_change_of_the_period_is_told_and_both_are_right(
    start: Callable[..., Target], tmp_path: Path
) -> None:
    before = kernel_state.program_ids()
    target = start("sped_up", 600, module=THINGS)
    done = attached(target.pid(), tmp_path / "run", "--for", "10")
    found = check_periods(tmp_path / "run", target)
    assert found[0] > 1.5 * min(found), done.stderr
    assert done.stderr.count("a period of about ") == len(found)
    for period in found:  # as the report tells it
        assert f" a period of {duration(period)}, " in done.stderr
    assert kernel_state.left_behind(before) == []


def test_a_stop_is_told_and_counts_for_no_period(
    start: Callable[..., Target], tmp_path: Path
) -> None:
    target = start("stopping", 600, module=THINGS)
    done = attached(target.pid(), tmp_path / "run", "--for", "7")
    assert "no period any more: it has stopped" in done.stderr, done.stderr
    assert check_periods(tmp_path / "run", target)


def test_the_report_tells_a_rate_and_a_period_and_no_step(
    start: Callable[..., Target], tmp_path: Path
) -> None:
    target = start("files", 600, module=THINGS)
    assert attached(target.pid(), tmp_path / "run", "--for", "1").returncode == 0
    run = RunLog.open(tmp_path / "run")
    summary = summarize(run)
    assert summary["steps"] == 0
    for text in (brief.render(summary, time.time_ns()), full.render(summary)):
        words = " ".join(text.split())
        assert "a period of 2" in words
        assert "estimated from the periodicity of its system calls" in words
        assert "nobody knows its steps" in words


def test_the_end_of_the_process_and_a_signal_end_it(
    start: Callable[..., Target], tmp_path: Path
) -> None:
    before = kernel_state.program_ids()
    target = start("files", 600, module=THINGS)
    words = ["attach", str(target.pid()), "--run-dir"]
    with subprocess.Popen(
        [sys.executable, "-m", "trainobs", *words, str(tmp_path / "a")],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as asked:
        assert asked.stderr is not None
        while "a period of" not in asked.stderr.readline():
            assert asked.poll() is None
        asked.send_signal(signal.SIGINT)
        _, told = asked.communicate(timeout=PATIENCE_S)
        assert asked.returncode == 0, told
    assert len(periods_of(tmp_path / "a")) == 1
    target.stop()
    target.events()
    done = attached(target.process.pid, tmp_path / "b")
    assert "there is no such process" in done.stderr or "it has ended" in done.stderr
    assert kernel_state.left_behind(before) == []


def test_a_process_that_ends_while_it_is_looked_at_is_refused(
    start: Callable[..., Target], tmp_path: Path
) -> None:
    done = attached(start("files", 1.5, module=THINGS).pid(), tmp_path / "run")
    assert done.returncode == 2
    assert "it has ended" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_process_that_imports_torch_meanwhile_is_to_be_attached_to_again(tmp_path: Path) -> None:
    script = "import time; time.sleep(6); import torch; time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", script]) as starting:
        try:
            done = attached(starting.pid, tmp_path / "run")
        finally:
            starting.kill()
    assert done.returncode == 2
    assert "it has imported torch meanwhile" in done.stderr
    assert f"do:    trainobs attach {starting.pid}" in done.stderr


def test_this_process_itself_and_threads_of_the_kernel_are_refused() -> None:
    with pytest.raises(AttachError, match="it is this"):
        find(os.getpid())
    with pytest.raises(AttachError, match="a thread of the kernel"):
        find(2)


OBSERVE = """
import sys, time
from trainobs.attach import periodic
from trainobs.attach.process import find
from trainobs.core.errors import AttachError
periodic.IDLE_S = 0.3
watch = periodic.PeriodWatch(find(int(sys.argv[1])), "")
began_s = time.monotonic()
try:
    periodic.observe(watch, lambda s: bool(time.sleep(s)), seconds=None, look_s=2.0)
except AttachError as error:
    print(time.monotonic() - began_s > 2.0, error.found)
watch.stop()
"""


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (["sleep", "600"], "False it runs no torch and no Python, and did nothing in 0 s"),
        ([sys.executable, "-c", "import time; time.sleep(600)"], "True no stable period found: "),
    ],
    ids=["a program", "Python"],
)
def test_what_cannot_become_a_training_is_given_up_early(command: list[str], found: str) -> None:
    process = subprocess.Popen(command)
    try:
        time.sleep(1.0)  # so that it sleeps
        words = [sys.executable, "-c", OBSERVE, str(process.pid)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    finally:
        process.kill()
        process.wait()
    assert done.stdout.startswith(found)
    assert done.stdout.count("system call") <= 1


@pytest.mark.parametrize(("uid", "do"), [(0, "start the container with CAP_BPF"), (1000, DO_ROOT)])
def test_root_without_capabilities_is_told_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, uid: int, do: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(obstacles, "capabilities", list)

    def load() -> None:
        raise obstacles.why_not_permitted(errno.EPERM)

    with pytest.raises(AttachError) as caught:
        loaded(load)
    assert caught.value.do.startswith(do)
    assert "trainobs-probed" not in caught.value.do
