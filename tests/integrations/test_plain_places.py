"""Where `observe` puts a run, and what the environment has to say."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integrations.models import loader, step_numbers
from tests.session.jobs import Job
from trainobs import observe
from trainobs.core.errors import SettingError
from trainobs.runlog.reader import RunLog


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_runs_one_after_the_other_and_one_in_the_other_have_their_own_logs(run_dir):
    places = []
    for _ in range(2):
        with observe(run_dir=run_dir) as outer, outer.step(), observe(run_dir=run_dir) as inner:
            with inner.step():
                pass
            with inner.step():
                pass
        places += [outer.run_dir, inner.run_dir]
    assert [place.name for place in places] == ["run", "run-2", "run-3", "run-4"]
    assert [step_numbers(place) for place in places] == [[0], [0, 1], [0], [0, 1]]


def test_one_that_is_entered_again_before_it_is_left_goes_on_until_the_last(run_dir):
    context = observe(run_dir=run_dir, probes="off")
    with context as outer:
        with context as inner, inner.step():
            pass
        with outer.step():
            pass
    assert outer is inner is context
    assert step_numbers(run_dir) == [0, 1]


def test_one_that_is_entered_after_its_end_observes_one_more_run(run_dir):
    context = observe(run_dir=run_dir, probes="off")
    places = []
    for steps in (1, 2):
        with context as obs:
            for _ in range(steps):
                with obs.step():
                    pass
        places.append(obs.run_dir)
    assert [place.name for place in places] == ["run", "run-2"]
    assert [step_numbers(place) for place in places] == [[0], [0, 1]]
    assert [RunLog.open(p).info["summary"]["outcome"] for p in places] == ["ok", "ok"]


def test_without_a_directory_it_takes_one_named_after_the_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with observe(probes="off") as obs, obs.step():
        pass
    assert obs.run_dir.parent == tmp_path / "trainobs"
    assert time.strptime(obs.run_dir.name, "%Y-%m-%d_%H-%M-%S")
    assert step_numbers(obs.run_dir) == [0]


def test_the_environment_turns_it_off(run_dir, monkeypatch):
    monkeypatch.setenv("TRAINOBS", "OFF")
    batches = loader()
    with observe(run_dir=run_dir) as obs:
        assert obs.loader(batches) is batches
        with obs.step(3), obs.phase("forward"):
            pass
    assert (obs.level, obs.run_dir) == ("off", None)
    assert not run_dir.exists()


def test_a_word_in_the_environment_that_means_nothing_is_an_error(run_dir, monkeypatch):
    monkeypatch.setenv("TRAINOBS", "maybe")
    with pytest.raises(SettingError, match="TRAINOBS"), observe(run_dir=run_dir):
        pass


@pytest.mark.parametrize("rank", ["", "one", "-1", "0"])
def test_a_rank_that_is_none_is_rank_0(run_dir, monkeypatch, rank):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", rank or "x")
    with observe(run_dir=run_dir, probes="off") as obs, obs.step():
        pass
    assert step_numbers(run_dir, rank=0) == [0]


def test_the_ranks_of_a_job_take_one_directory_whenever_they_begin(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with observe(probes="off") as first, first.step():
        time.sleep(1.1)  # names made of the time would differ
        monkeypatch.setenv("RANK", "1")
        with observe(probes="off") as second:
            pass
    assert first.run_dir == second.run_dir == tmp_path / "trainobs" / "run"


def test_what_launchers_set_is_the_rank(run_dir, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with observe(run_dir=run_dir, probes="off") as obs, obs.step():
        pass
    assert step_numbers(run_dir, rank=3) == [0]
    assert not (run_dir / "tensorboard").exists()


def in_a_process(code: str, *arguments: object) -> str:
    """What a script says on standard error."""
    status, _, errors = Job("-c", code, *arguments).end()
    assert status == 0, errors
    return errors


def test_a_current_directory_that_was_deleted_is_told_as_such(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    errors = in_a_process(IN_A_DELETED_DIRECTORY, gone)
    assert "  do:    change to a directory that exists: the current one was deleted" in errors
    assert "please report" not in errors


IN_A_DELETED_DIRECTORY = """
import os, sys
from trainobs import observe
os.chdir(sys.argv[1])
os.rmdir(sys.argv[1])
with observe(probes="off") as obs, obs.step():
    pass
assert obs.run_dir is None
"""


def test_a_limit_of_threads_is_told_as_such(tmp_path):
    errors = in_a_process(WITH_FEW_THREADS, tmp_path / "first")
    assert "  do:    allow more threads" in errors
    assert "please report" not in errors


WITH_FEW_THREADS = """
import os, resource, sys, tempfile
from trainobs import observe
with observe(run_dir=sys.argv[1], probes="off", quiet=True):
    pass  # all is imported now
with tempfile.TemporaryDirectory() as directory:
    os.chown(directory, 54321, 54321)
    os.setuid(54321)  # root has no such limit
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    with observe(run_dir=directory + "/run", probes="off") as obs, obs.step():
        pass
    assert obs.run_dir is None
    assert os.listdir(directory) == []
"""
