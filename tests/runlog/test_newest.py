"""Which run a run directory stands for, where later ones had to go beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kernel.privileges import another_user
from tests.samples import CLOCK
from trainobs.analysis.newest import newest_run
from trainobs.core.errors import RunLogError
from trainobs.runlog.reader import RunLog, newest_for, not_seen, shut_below
from trainobs.runlog.schema import RUN_FILE


def begin(path: Path, at: int, beside: str | None = None) -> Path:
    settings = {} if beside is None else {"beside": beside}
    clock = {**CLOCK, "wall_ns": CLOCK["wall_ns"] + at}
    path.mkdir(parents=True)
    facts = {"schema": 1, "trainobs": "0.1.0", "level": "timing", "clock": clock}
    (path / RUN_FILE).write_text(json.dumps({**facts, "settings": settings}))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return begin(tmp_path / "a [run]", 0)


def test_a_run_that_is_alone_stands_for_itself(run, tmp_path):
    begin(tmp_path / "a [run]-2", 1)  # named so by its user
    begin(tmp_path / "a [run]-3", 2, beside="b")
    (tmp_path / "a [run]-4").mkdir()
    assert newest_for(run) == run


def test_it_stands_for_the_newest_that_was_to_go_there(run, tmp_path):
    later = begin(tmp_path / "a [run]-10", 2, beside=run.name)
    begin(tmp_path / "a [run]-9", 1, beside=run.name)
    assert newest_for(run) == later
    assert newest_for(later) == later
    assert newest_for(run / RUN_FILE) == run / RUN_FILE
    assert RunLog.open(run / RUN_FILE).path == run
    assert RunLog.open(run).path == run


def test_it_stands_for_itself_if_it_is_newer(tmp_path):
    begin(tmp_path / "run-2", 0, beside="run")
    assert newest_for(begin(tmp_path / "run", 1)) == tmp_path / "run"


def test_a_run_that_was_killed_as_it_began_gives_way_to_those_beside_it(tmp_path):
    (tmp_path / "run" / "rank=0").mkdir(parents=True)
    assert newest_for(tmp_path / "run") == tmp_path / "run"
    later = begin(tmp_path / "run-2", 2, beside="run")
    begin(tmp_path / "run-3", 3)
    assert newest_for(tmp_path / "run") == later


def test_below_the_current_directory_names_are_known(run, tmp_path, monkeypatch):
    later = begin(tmp_path / "a [run]-2", 2, beside=run.name)
    monkeypatch.chdir(run)
    assert newest_for(Path()) == later


def test_what_holds_no_run_is_left_to_the_reader(tmp_path):
    assert newest_for(tmp_path / "none") == tmp_path / "none"
    with pytest.raises(RunLogError):
        RunLog.open(newest_for(tmp_path / "none"))


def test_a_damaged_file_beside_it_is_passed_over(run, tmp_path):
    other = begin(tmp_path / "a [run]-2", 2, beside=run.name)
    (other / RUN_FILE).write_text("{")
    assert newest_for(run) == run


@pytest.fixture
def below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, which all may read, though they may not reach it by its path."""
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return Path()


def test_what_may_not_be_looked_into_is_named(below):
    run = begin(below / "run", 0)
    begin(below / "of others", 1).chmod(0)
    (below / "loop").symlink_to("loop")
    with another_user():
        assert RunLog.open(below).path == run
        assert not_seen(shut_below(below)) == "no permission to look into of others"
        assert shut_below(run) == []
        assert newest_run(below) == (
            below,
            ["no permission to look into of others: newer runs in there are not seen"],
        )


def test_that_nothing_is_there_is_not_claimed_of_what_is_shut(below):
    begin(below / "a", 1).chmod(0)
    begin(below / "b" / "c" / "d" / "e", 1).chmod(0)
    with another_user(), pytest.raises(RunLogError) as error:
        RunLog.open(below)
    assert error.value.found == (
        "no run.json of trainobs in it, nor four levels below, but no permission to look into a "
        "and 1 more"
    )
