"""Each job has a run directory of its own, however many begin at the same moment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace

import pytest

from tests import warm
from trainobs.core.errors import ProbeError, SettingError
from trainobs.hooks.distributed import TorchJob
from trainobs.probes import shared
from trainobs.runlog import directory
from trainobs.runlog.reader import RunLog
from trainobs.session import runs
from trainobs.session.runs import open_session
from trainobs.session.settings import Settings

JOBS = 6

JOB = """
import sys
from pathlib import Path
from trainobs.session.runs import open_session
from trainobs.session.settings import Settings
print("ready", flush=True)
sys.stdin.readline()
settings = Settings.parse("off", quiet=True)
session, run_dir = open_session(settings, Path(sys.argv[1]), log_every_n_steps=1)
for _ in range(2):  # a curve begins with its second point
    session.clock.begin_batch()
    session.clock.end_step()
session.stop()
print(run_dir)
"""

OFF = Settings.parse("off")


def test_jobs_that_begin_at_the_same_moment_share_no_directory(tmp_path: Path) -> None:
    jobs = [
        warm.Popen(
            [sys.executable, "-c", JOB, tmp_path / "run"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(JOBS)
    ]
    assert [job.stdout.readline() for job in jobs] == ["ready\n"] * JOBS
    for job in jobs:
        job.stdin.write("go\n")
        job.stdin.flush()
    told = [job.communicate() for job in jobs]
    assert [err for _, err in told] == [""] * JOBS
    places = {Path(out.strip()) for out, _ in told}
    assert places == {tmp_path / name for name in ("run", *(f"run-{n}" for n in range(2, 7)))}
    for place in places:
        assert RunLog.open(place).ranks[0] is not None
        assert len(list((place / "tensorboard").iterdir())) == 1


def test_sessions_that_run_side_by_side_share_no_directory(tmp_path: Path) -> None:
    first, place = open_session(OFF, tmp_path / "run", log_every_n_steps=1)
    second, other = open_session(OFF, tmp_path / "run", log_every_n_steps=1)
    assert (place, other) == (tmp_path / "run", tmp_path / "run-2")
    first.stop()
    second.stop()


def test_ranks_of_two_jobs_that_begin_at_once_go_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first job rank 1 comes first, and of the second rank 0."""
    sessions, places = [], {}
    for job, rank in (("first", 1), ("second", 0), ("first", 0), ("second", 1)):
        monkeypatch.setenv("MASTER_PORT", job)
        of = {"rank": rank, "world_size": 2, "job": TorchJob()}
        session, place = open_session(OFF, tmp_path / "run", log_every_n_steps=1, **of)
        sessions.append(session)
        places[job, rank] = place.name
    for session in sessions:
        session.stop()
    assert places == {
        ("first", 0): "run",
        ("first", 1): "run",
        ("second", 0): "run-2",
        ("second", 1): "run-2",
    }


@pytest.mark.parametrize("first", ["alone", "rank"])
def test_a_job_of_one_rank_and_one_of_several_share_no_directory(
    tmp_path: Path, first: str
) -> None:
    """Of the job of several, rank 1 comes first; the job of one may have been killed long ago."""
    run_dir, alone, several = tmp_path / "run", "run", "run-2"
    if first == "rank":
        alone, several = "run-2", "run"
        assert directory.claim(run_dir, 1, "job").name == several
    assert directory.claim(run_dir, 0).name == alone
    for rank in (2, 0) if first == "rank" else (1, 0):
        assert directory.claim(run_dir, rank, "job").name == several


def test_the_directory_is_claimed_before_the_run_log_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def session(*args: object, **kwargs: object) -> object:
        seen.append((tmp_path / "run" / "rank=1").is_dir())
        return SimpleNamespace(stop=lambda outcome: None)

    monkeypatch.setattr(runs, "Session", session)
    open_session(OFF, tmp_path / "run", log_every_n_steps=1, rank=1, world_size=2)
    assert seen == [True]


def test_a_session_that_cannot_begin_gives_its_directory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "KERNEL_BTF", tmp_path / "missing")
    with pytest.raises(ProbeError):
        open_session(Settings.parse(["sched"]), tmp_path / "run", log_every_n_steps=1)
    assert not (tmp_path / "run").exists()
    of = {"rank": 1, "world_size": 2, "job": TorchJob()}
    with pytest.raises(ProbeError):
        open_session(Settings.parse(["sched"]), tmp_path / "run", log_every_n_steps=1, **of)
    assert not (tmp_path / "run").exists()


def test_a_place_where_no_directory_can_be_made_stops_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    session, place = open_session(OFF, tmp_path / "file" / "run", log_every_n_steps=1)
    session.stop()
    assert place == tmp_path / "file" / "run"
    assert "cannot store the record in the runlog" in caplog.text


def test_where_the_usual_place_can_never_be_written_the_run_goes_to_a_temporary_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    usual = Path("/sys/trainobs/now")  # which nobody may write to, root included
    session, place = open_session(OFF, usual, log_every_n_steps=1)
    session.stop()
    assert place.is_relative_to(tempfile.gettempdir())
    assert place.name == usual.name
    assert list(RunLog.open(place).ranks) == [0]
    assert f"The run goes to {place}" in caplog.text
    assert str(usual.parent) in caplog.text
    shutil.rmtree(place.parent)


def test_ranks_that_would_not_find_each_others_temporary_place_wait_for_the_usual_one() -> None:
    usual = Path("/sys/trainobs/run")
    session, place = open_session(OFF, usual, log_every_n_steps=1, rank=1, world_size=2)
    session.stop()
    assert place == usual


def test_the_search_for_a_free_name_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(directory, "LAST_NAME", 3)
    taken = [tmp_path / name / "rank=0" for name in ("run", "run-2", "run-3")]
    for place in taken:
        place.mkdir(parents=True)
    for search in (directory.claim, directory.next_free):
        with pytest.raises(FileExistsError, match="so are 3 names like it"):
            search(tmp_path / "run", 0)
    assert directory.next_free(tmp_path / "run", 1) == tmp_path / "run"
    session, place = open_session(OFF, tmp_path / "run", log_every_n_steps=1)
    session.stop()
    assert place == tmp_path / "run"
    assert "belongs to an earlier run" in caplog.text
    assert sorted(tmp_path.glob("*/rank=0")) == taken
    assert not any(list(directory.iterdir()) for directory in taken)


@pytest.mark.parametrize("root", ["x" * 300, "/" + "d/" * 3000, "~nobody-of-that-name/x"])
def test_data_roots_that_no_system_call_takes_are_bad_settings(root: str) -> None:
    with pytest.raises(SettingError, match="data_roots"):
        Settings.parse(data_roots=root)


@pytest.fixture
def of_another(tmp_path: Path) -> Path:
    """A directory that we may write to and another user owns, with links planted in it."""
    if os.geteuid():
        pytest.skip("giving a directory away needs root")
    place = tmp_path / "run"
    place.mkdir()
    (tmp_path / "elsewhere").mkdir()
    for name in ("rank=0", "tensorboard", "access-counts"):
        (place / name).symlink_to(tmp_path / "elsewhere")
    os.chown(place, 4711, -1)
    return place


def test_a_directory_that_another_user_owns_is_refused(of_another: Path) -> None:
    settings = Settings.parse("off", run_dir=of_another)
    with pytest.raises(SettingError) as error:
        open_session(settings, of_another, log_every_n_steps=1)
    assert error.value.found == f"[Errno 1] Another user owns it: '{of_another}'"
    assert not list((of_another.parent / "elsewhere").iterdir())


def test_a_link_of_another_user_to_a_directory_of_ours_is_refused(of_another: Path) -> None:
    link = of_another.with_name("link")
    link.symlink_to(of_another.with_name("elsewhere"))
    directory.refuse_foreign(link)
    os.lchown(link, 4711, -1)
    with pytest.raises(PermissionError, match="Another user owns it"):
        directory.refuse_foreign(link)


def test_a_name_that_another_user_took_first_is_passed_over(of_another: Path) -> None:
    session, place = open_session(OFF, of_another, log_every_n_steps=1)
    session.clock.begin_batch()
    session.clock.end_step()
    session.stop()
    assert place == of_another.with_name("run-2")
    assert RunLog.open(place).ranks[0].step()[-1] == 0
    assert not list((of_another.parent / "elsewhere").iterdir())


def test_where_all_files_belong_to_one_user_a_directory_is_ours(
    of_another: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network's file system, which gives what root makes to nobody."""
    make = Path.mkdir

    def squashed(path: Path, *args: object, **kwargs: object) -> None:
        make(path, *args, **kwargs)
        os.chown(path, 4711, -1)

    monkeypatch.setattr(Path, "mkdir", squashed)
    directory.refuse_foreign(of_another)


@pytest.mark.parametrize("name", ["tensorboard", "access-counts"])
def test_what_is_planted_while_a_run_goes_on_is_not_written_through(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "elsewhere").mkdir()
    session, place = open_session(OFF, tmp_path / "run", log_every_n_steps=1)
    (place / name).symlink_to(tmp_path / "elsewhere")
    session.clock.begin_batch()
    session.clock.end_step()
    session.stop()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_ranks_of_a_job_that_begin_at_the_same_moment_take_one_directory(tmp_path: Path) -> None:
    ranks = 4
    with ThreadPoolExecutor(ranks) as pool:
        for number in range(200):
            together = Barrier(ranks)

            def begin(rank: int, to: Path = tmp_path / f"{number}", at: Barrier = together) -> Path:
                at.wait()
                return directory.claim(to, rank, "job")

            assert set(pool.map(begin, range(ranks))) == {tmp_path / f"{number}"}
