"""`trainobs report --watch`: a run that has not begun, goes on, and ends."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from tests.analysis.runs import steps_of, write
from tests.samples import batch, info
from trainobs.analysis.live import SHARE, LiveRun
from trainobs.core.errors import RunLogError
from trainobs.report.follow import CLEAR, follow
from trainobs.runlog import writer
from trainobs.runlog.writer import RunLogSink


def some_steps(first: int, count: int):
    return batch(
        range(first, first + count), step__duration_ns=[1e6] * count, loader__wait_ns=[1e6] * count
    )


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_run_is_waited_for_followed_and_shown_whole_at_its_end(tmp_path):
    place, shown = tmp_path / "runs" / "one", []
    sink = RunLogSink(place)

    def pass_time(seconds: float) -> None:
        assert seconds == 2.0
        acts.pop(0)()

    def begin() -> None:
        sink.begin(info())
        sink.write(some_steps(0, 5))
        sink.flush()

    def end() -> None:
        sink.write(some_steps(5, 5))
        sink.end({"outcome": "ok"})

    acts = [lambda: None, begin, end, *[lambda: time.sleep(0.2)] * 100]
    follow(place, lambda text: shown.append(text) or True, redraws=False, sleep=pass_time)
    assert shown[0] == f"waiting for a run in {place}; Ctrl-C ends this"
    first = [text.splitlines()[0].split(": ", 1)[1] for text in shown[1:]]
    assert first == ["5 steps in 5 ms, not ended, or killed", "10 steps in 10 ms, ended: ok"]


def test_in_a_low_terminal_the_begin_is_seen_and_at_the_end_all(tmp_path, monkeypatch):
    monkeypatch.setenv("LINES", "10")
    monkeypatch.setenv("COLUMNS", "100")
    sink, shown = RunLogSink(tmp_path / "r"), []
    sink.begin(info())
    sink.write(some_steps(0, 20))
    sink.flush()

    acts = [lambda: sink.end({"outcome": "ok"}), *[lambda: time.sleep(0.2)] * 100]
    show = {"write": lambda text: shown.append(text) or True, "sleep": lambda _: acts.pop(0)()}
    follow(tmp_path / "r", redraws=True, **show)
    first, *_, last = (text.removeprefix(CLEAR).rstrip("\n").split("\n") for text in shown)
    assert len(first) == 8, "an empty line, and the cursor, in the last two"
    assert first[2:7] == last[2:7], "those before tell of the end"
    assert first[7] == f"{len(last) - 7} more lines: in a higher terminal, or without `--watch`"
    assert "More: " in last[-1]


def test_it_ends_when_nobody_reads(tmp_path):
    write(tmp_path / "r", steps_of(10, 20))
    follow(tmp_path / "r", lambda text: False, redraws=True, sleep=pytest.fail)
    follow(tmp_path / "none", lambda text: False, redraws=True, sleep=pytest.fail)


def test_what_is_no_run_is_not_waited_for(tmp_path):
    path = write(tmp_path / "r", steps_of(10, 20))
    (path / "run.json").write_text("{")
    with pytest.raises(RunLogError):
        follow(path, lambda text: True, redraws=False, sleep=pytest.fail)


def test_of_a_long_run_only_the_newest_parts_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_STEPS", 5)
    sink = RunLogSink(tmp_path / "r")
    sink.begin(info())
    for first in range(0, 50, 5):
        sink.write(some_steps(first, 5))
        sink.flush()
    run = LiveRun(tmp_path / "r")
    assert run.look()
    assert (run.summary["steps"], run.summary["newest"]["number"]) == (10, 49)
    assert run.summary["is_part"]
    sink.end({"outcome": "ok"})
    run = LiveRun(tmp_path / "r")
    assert run.look()
    assert (run.summary["steps"], run.summary["is_part"]) == (50, False)


def test_it_reads_what_is_new_and_no_more_often_than_its_share_of_a_cpu_allows(tmp_path):
    sink = RunLogSink(tmp_path)
    sink.begin(info())
    sink.write(some_steps(0, 5))
    sink.flush()
    clock, cpu = Clock(), iter(range(100))  # reading takes a second of CPU time
    run = LiveRun(tmp_path, clock, lambda: float(next(cpu)))
    assert run.look()
    sink.write(some_steps(5, 5))
    sink.flush()
    clock.now = 1 / SHARE - 1
    assert not run.look()
    assert run.summary["steps"] == 5
    clock.now = 1 / SHARE
    assert run.look()
    assert run.summary["steps"] == 10
    clock.now = 100.0
    assert not run.look(), "nothing is new"


def test_ctrl_c_leaves_without_a_word(tmp_path):
    """In a terminal, where it redraws."""
    write(tmp_path / "r", steps_of(10, 20))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "trainobs", "report", str(tmp_path / "r"), "--watch"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=environment) as job:
        os.close(theirs)
        shown = b""
        while b"More: " not in shown:
            shown += os.read(ours, 65536)
        job.send_signal(signal.SIGINT)
        assert job.wait(20) == 0
        assert job.stderr.read() == b""
    os.close(ours)
    assert shown.startswith(b"\x1b[H\x1b[2J")
    assert b"not ended, or killed" in shown
