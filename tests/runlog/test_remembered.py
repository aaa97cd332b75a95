"""Files of a run log are checked once, and again when they have changed."""

from __future__ import annotations

import os

import pytest

from tests.samples import batch, info
from trainobs.runlog import parquet
from trainobs.runlog.reader import RunLog
from trainobs.runlog.writer import RunLogSink


@pytest.fixture
def run(tmp_path):
    """A run of one part, written a minute ago."""
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    sink.write(batch(range(5)))
    sink.end({"outcome": "ok"})
    for file in (tmp_path / "run" / "rank=0").iterdir():
        old = file.stat().st_mtime - 60
        os.utime(file, (old, old))
    return tmp_path / "run"


@pytest.fixture
def checked(monkeypatch) -> list[str]:
    """Names of the files that were read to be checked."""
    names: list[str] = []
    check = parquet.why_unreadable

    def noted(path, columns):
        names.append(path.name)
        return check(path, columns)

    monkeypatch.setattr(parquet, "why_unreadable", noted)
    return names


def test_a_file_that_is_as_it_was_is_not_read_again(run, checked):
    assert not RunLog.open(run).unreadable
    assert checked == ["steps-00000.parquet"]
    assert not RunLog.open(run).unreadable
    assert len(checked) == 1


def test_a_file_that_was_replaced_or_written_into_is_checked_again(run, checked):
    steps = run / "rank=0" / "steps-00000.parquet"
    assert not RunLog.open(run).unreadable
    old, whole = steps.stat(), steps.read_bytes()
    other = steps.with_name("other")
    other.write_bytes(whole[::-1])  # as long, and of the same time
    os.utime(other, ns=(old.st_atime_ns, old.st_mtime_ns))
    other.replace(steps)
    assert list(RunLog.open(run).unreadable) == [steps]
    steps.write_bytes(whole)  # now
    assert not RunLog.open(run).unreadable
    steps.write_bytes(whole[::-1])  # and at the same tick of the file system's clock
    assert list(RunLog.open(run).unreadable) == [steps]
    assert len(checked) == 4
