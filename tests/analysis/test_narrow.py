"""A report in a terminal that is narrower than its lines."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from tests.analysis.runs import loader_bound
from trainobs.analysis.summary import summarize
from trainobs.report import brief
from trainobs.report.rows import WIDTH, fitted
from trainobs.runlog.reader import RunLog


@pytest.fixture
def run(tmp_path):
    return loader_bound(tmp_path / "r")


@pytest.fixture
def text(run):
    return brief.render(summarize(RunLog.open(run)), 0)


def said(text: str) -> str:
    """Without blanks, since a path may be longer than a line, and without bars."""
    return "".join(word for word in text.split() if set(word) != {"#"})


def bars(text: str) -> list[int]:
    return [len(found) for found in re.findall(r" {2,}(#+)$", text, re.MULTILINE)]


def test_it_says_the_same_in_lines_that_fit_and_bars_keep_their_order(text):
    narrow = fitted(text, 80)
    assert max(map(len, text.splitlines())) > 80
    assert max(map(len, narrow.splitlines())) <= 80
    assert said(narrow) == said(text)
    assert len(bars(narrow)) == len(bars(text)) > 1
    for wide, short in zip(bars(text), bars(narrow), strict=True):
        assert short == max(1, wide * 18 // 38)  # they begin behind 62 characters


@pytest.mark.parametrize("width", [1, 7, 40, 62, 63, 99])
def test_no_width_is_too_narrow(text, width):
    assert said(fitted(text, width)) == said(text)


def test_where_there_is_room_or_no_terminal_it_stays_as_it_is(text):
    assert fitted(text, WIDTH) == fitted(text) == text


def test_the_terminal_says_how_wide_it_is(run, text):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", "trainobs", "report", str(run)]
    with subprocess.Popen(command, stdout=theirs, env=environment) as job:
        os.close(theirs)
        shown = b""
        try:
            while more := os.read(ours, 65536):
                shown += more
        except OSError:  # the end, of a terminal
            os.close(ours)
    assert job.returncode == 0
    lines = shown.decode().splitlines()
    assert len(lines) > 10
    assert max(map(len, lines)) <= 80
