"""Files of a run log are checked once, and again when they have changed."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.samples import batch, busy_run, info
from trainobs.analysis.summary import summarize
from trainobs.analysis.verdicts import summed_steps, verdicts
from trainobs.runlog import parquet, remembered
from trainobs.runlog.reader import RunLog
from trainobs.runlog.writer import RunLogSink


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of one part, which is taken for an old one."""
    monkeypatch.setattr(remembered, "_OLD_NS", -(10**12))
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    sink.write(batch(range(5)))
    sink.end({"outcome": "ok"})
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


def test_a_file_that_was_replaced_or_is_new_is_checked_again(run, checked, monkeypatch):
    steps = run / "rank=0" / "steps-00000.parquet"
    assert not RunLog.open(run).unreadable
    old, whole = steps.stat(), steps.read_bytes()
    other = steps.with_name("other")
    other.write_bytes(whole[::-1])  # as long, and of the same time
    os.utime(other, ns=(old.st_atime_ns, old.st_mtime_ns))
    other.replace(steps)
    assert list(RunLog.open(run).unreadable) == [steps]
    monkeypatch.setattr(remembered, "_OLD_NS", 10**9)
    for content, damaged in ((whole, []), (whole[::-1], [steps])):  # at one tick of the clock
        steps.write_bytes(content)
        assert list(RunLog.open(run).unreadable) == damaged
    assert len(checked) == 4


def test_a_file_that_could_not_be_read_is_read_again(run, checked):
    steps = run / "rank=0" / "steps-00000.parquet"
    whole = steps.read_bytes()
    steps.write_bytes(b"PAR1")
    for _ in range(2):
        assert list(RunLog.open(run).unreadable) == [steps]
    assert len(checked) == 2
    steps.write_bytes(whole)
    assert not RunLog.open(run).unreadable


def test_files_are_looked_at_when_their_table_is_asked_for(run, checked):
    rank = RunLog.open(run).ranks[0]
    assert checked == []
    assert len(rank.files["steps"]) == 1
    assert checked == ["steps-00000.parquet"]


def test_a_file_is_looked_at_as_it_is_read(run, checked):
    rank = RunLog.open(run).ranks[0]
    assert len(rank.step()) == 5
    assert len(rank.files["steps"]) == 1
    assert checked == []
    steps = run / "rank=0" / "steps-00000.parquet"
    steps.write_bytes(steps.read_bytes()[:-9])
    rank = RunLog.open(run).ranks[0]
    assert len(rank.step()) == 0
    assert list(rank.files.unreadable("steps")) == [steps]


def test_a_file_that_goes_away_while_the_run_is_read_is_not_told_to_have_bad_values(run):
    read = RunLog.open(run)
    assert len(read.ranks[0].step()) == 5
    (run / "rank=0" / "steps-00000.parquet").unlink()
    assert list(read.unreadable.values()) == ["no such file"]


@pytest.fixture
def columns_read(monkeypatch) -> Counter[str]:
    """How often columns of a file were read, by rank and name of the file."""
    times: Counter[str] = Counter()
    read = parquet._read

    def noted(path, columns, packed=False):
        times["/".join(path.parts[-2:])] += bool(columns)
        return read(path, columns, packed)

    monkeypatch.setattr(parquet, "_read", noted)
    return times


def test_a_summary_reads_each_file_of_cells_once(tmp_path, columns_read):
    sink = RunLogSink(tmp_path)
    sink.begin(info())
    sink.write(busy_run(8))
    sink.end({"outcome": "ok"})
    summarize(RunLog.open(tmp_path))
    assert columns_read["rank=0/kernel-00000.parquet"] == 1


def test_a_verdict_reads_the_steps_of_another_rank_once(tmp_path, columns_read):
    for rank in range(2):
        sink = RunLogSink(tmp_path, rank)
        sink.begin(info(rank=rank, world_size=2))
        sink.write(busy_run(8))
        sink.end({"outcome": "ok"})
    run = RunLog.open(tmp_path)
    verdicts(run, summed_steps(run), None)
    assert columns_read["rank=1/steps-00000.parquet"] == 1
