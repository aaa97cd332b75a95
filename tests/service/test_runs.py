"""Whole runs find the service by themselves, and outlive it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import kernel_state
from tests.integrations.models import read_steps
from tests.kernel.ground_truth import write_file
from tests.kernel.privileges import NOBODY
from tests.kernel.processes import A_DAY_AHEAD, join, run_job
from tests.kernel.runlog import RunTables
from tests.service.service import MAIN, Service, as_user
from tests.session.jobs import Job, loop, programs_of, wait_for
from trainobs import observe
from trainobs.probes.doctor import examine, render
from trainobs.probes.protocol import VARIABLE
from trainobs.runlog.reader import RunLog

pytestmark = pytest.mark.needs_bpf

LACKING = """
from trainobs.probes.kernel_names import KernelNames
KernelNames.has_tracepoint = lambda names, name: name != "page_cache_sync_ra"
KernelNames.__contains__ = lambda names, name: name != "page_cache_sync_ra"
"""
"""A service on a kernel that has all but one function."""

SIZE = 10_007
HERE = Path(__file__).parent
UNPRIVILEGED = HERE.parent / "session" / "unprivileged_job.py"


@pytest.fixture
def nobodys(service: Service, open_place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of nobody's own; runs look for the service where it is."""
    monkeypatch.setenv(VARIABLE, str(service.path))
    directory = open_place / "nobodys"
    directory.mkdir()
    os.chown(directory, NOBODY, NOBODY)
    write_file(directory / "data", SIZE)
    return directory


@pytest.fixture
def job(nobodys: Path) -> Iterator[Job]:
    running = Job(HERE / "served_job.py", nobodys)
    assert running.line() == "level ebpf"
    yield running
    if running.process.poll() is None:
        running.process.kill()
    running.process.communicate()


def summary(directory: Path) -> dict[str, dict[str, int]]:
    return RunLog.open(directory / "run").info["summary"]


def test_a_run_without_capabilities_is_observed_by_the_service(service: Service, nobodys: Path):
    job = Job(HERE / "served_job.py", nobodys)
    job.step(30)
    assert job.programs() == set()
    (nobodys / "end").touch()
    status, _, errors = job.end()
    assert (status, errors) == (0, "")
    info = RunLog.open(nobodys / "run").info
    assert set(info["capabilities"].values()) == {"on"}
    assert not any(info["summary"]["losses"].values())
    read = read_steps(nobodys / "run").slice(1)["io/data_read_bytes"].to_pylist()
    assert set(read) == {SIZE}
    service.is_free_again()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_run_goes_on_without_the_service_and_says_what_is_missing(
    service: Service, job: Job, nobodys: Path, restarted: bool
):
    job.step(50)
    service.stop(signal.SIGKILL)
    again = Service(service.path) if restarted else None
    job.step(150)
    (nobodys / "end").touch()
    status, _, errors = job.end()
    assert status == 0
    assert errors.count("the kernel side of this run has ended") == 1
    assert errors.count("trainobs") == 0
    assert summary(nobodys)["losses"]["service"] == 1
    steps = read_steps(nobodys / "run").slice(1)
    read = steps["io/data_read_bytes"].to_pylist()
    known = [value for value in read if value is not None]
    assert known, "no step from before the service's death is known"
    assert set(known) == {SIZE}, "a step that was not counted to its end has a value"
    assert read == known + [None] * (len(read) - len(known))
    assert len(known) < 120
    assert steps["step/duration_ns"].null_count == 0
    assert sum(steps["obs/lost_count"].to_pylist()) == 1
    if again:
        next_one = Job(UNPRIVILEGED, nobodys, "auto")
        assert next_one.end()[:2] == (0, ["level: ebpf"])
        again.stop()


def test_a_run_that_ends_right_after_the_service_has_no_zero(
    service: Service, job: Job, nobodys: Path
):
    job.step(50)
    service.stop(signal.SIGKILL)
    (nobodys / "end").touch()
    status, _, errors = job.end()
    assert status == 0
    assert errors.count("the kernel side of this run has ended") == 1
    assert summary(nobodys)["losses"]["service"] == 1
    read = read_steps(nobodys / "run").slice(1)["io/data_read_bytes"].to_pylist()
    assert set(read) <= {SIZE, None}
    assert read[-1] is None


def test_the_programs_are_gone_when_the_service_is(service: Service, job: Job):
    job.step(5)
    held = service.programs()
    assert len(held) > 20
    assert held <= kernel_state.program_ids()
    assert service.stop() == 0
    assert not service.path.exists()
    wait_for(lambda: not held & kernel_state.program_ids())


def test_the_service_has_given_up_all_that_it_does_not_need(service: Service):
    lines = Path(f"/proc/{service.process.pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    two = f"{1 << 38 | 1 << 39:016x}"
    assert (status["CapPrm"], status["CapEff"], status["CapBnd"]) == (two, two, two)
    assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
    assert status["NoNewPrivs"] == "1"


def test_a_second_service_does_not_take_the_place_of_the_first(service: Service):
    with pytest.raises(AssertionError, match="another service answers there"):
        Service(service.path)
    assert service.sessions() == 0


def test_probes_asked_for_by_name_must_be_the_services(service: Service, nobodys: Path):
    """Without system calls, bytes of files come from /proc."""
    assert Job(UNPRIVILEGED, nobodys, "block", "net").end()[:2] == (0, ["level: procfs"])
    assert Job(UNPRIVILEGED, nobodys, "syscalls").end()[:2] == (0, ["level: ebpf"])


def test_a_probe_that_the_service_does_not_have_is_an_error(
    nobodys: Path, open_place: Path, monkeypatch: pytest.MonkeyPatch
):
    service = Service(open_place / "lacking.sock", code=LACKING + MAIN)
    monkeypatch.setenv(VARIABLE, str(service.path))
    try:
        status, lines, _ = Job(UNPRIVILEGED, nobodys, "page_cache").end()
        assert status == 0
        assert lines[0] == "ProbeError: NO_PERMISSION"
        assert "it does not have tobs_ra_wait" in lines[2]
        assert Job(UNPRIVILEGED, nobodys, "syscalls").end()[1] == ["level: ebpf"]
    finally:
        service.stop()


def test_root_uses_the_service_too_and_may_do_without(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(VARIABLE, str(service.path))
    with observe(run_dir=tmp_path / "one") as obs, obs.step():
        assert programs_of(os.getpid()) == set()
        assert service.sessions() == 1
        with observe(run_dir=tmp_path / "two") as other:  # the service has one for each process
            assert other.level == "ebpf"
            assert programs_of(os.getpid())
    with observe(run_dir=tmp_path / "three") as obs, obs.step():
        assert programs_of(os.getpid()) == set()
    monkeypatch.setenv(VARIABLE, "")
    with observe(run_dir=tmp_path / "four") as obs, obs.step():
        assert programs_of(os.getpid())


def test_workers_that_outlive_a_killed_run_do_not_keep_its_session(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(VARIABLE, str(service.path))
    with loop(tmp_path) as job:
        job.step(5)
        workers = job.workers()
        assert len(workers) == 2
        assert service.sessions() == 1
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)  # or they would notice after 5 s, and end
        os.kill(job.process.pid, signal.SIGKILL)
        service.is_free_again()
        assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == workers


def test_the_doctor_says_who_may_use_the_service(service: Service, nobodys: Path):
    def member() -> None:
        found = examine()
        assert found["level"] == "ebpf"
        assert found["service"]["answers"] is True
        assert f"answers at {service.path}, for the group nogroup" in render(found)
        assert all(
            about["state"] == "on" for probe in found["probes"].values() for about in probe.values()
        )
        json.dumps(found)

    def stranger() -> None:
        found = examine()
        assert found["service"]["answers"] is False
        assert "Permission denied" in found["service"]["why"]
        assert "for the group nogroup" in render(found)
        assert "put into the group" in found["why"]["do"]

    join(as_user(member))
    join(as_user(stranger, gid=NOBODY - 1))
    service.is_free_again()
    assert service.stop(signal.SIGKILL)
    assert "Connection refused" in examine()["service"]["why"]


def test_the_clock_of_a_process_in_a_time_name_space_is_known(nobodys: Path) -> None:
    """Or no wait for the interpreter's lock is told as one, since that has a limit in time."""
    run = nobodys / "run"
    run_job("held", A_DAY_AHEAD, run_dir=str(run), steps=5, held_s=0.1, as_nobody=True)
    waited = sum(row["python/gil_wait_ns"] for row in RunTables(run).steps)
    assert waited > 5 * 0.08e9
