"""However a run ends, nothing of it stays, and what it wrote can be read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests import kernel_state
from tests.integrations.models import read_steps, step_numbers
from tests.session.jobs import Job, descriptors_of, loop, programs_of, wait_for
from trainobs import observe
from trainobs.analysis.summary import summarize
from trainobs.report.losses import lost
from trainobs.runlog.reader import RunLog

pytestmark = pytest.mark.needs_bpf


def gone(programs: set[int]) -> None:
    """Wait for the kernel, which unloads some time after the last descriptor is closed."""
    assert programs
    wait_for(lambda: not programs & kernel_state.program_ids())


def outcome(directory: Path) -> str:
    return RunLog.open(directory / "run").info["summary"]["outcome"]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "trainobs"]


def test_after_success_there_is_neither_program_nor_thread_nor_descriptor(tmp_path):
    with observe(run_dir=tmp_path / "run") as obs, obs.step():
        programs = programs_of(os.getpid())
        assert threads() == ["trainobs"]
        assert descriptors_of(os.getpid())
    assert threads() == []
    assert descriptors_of(os.getpid()) == set()
    gone(programs)
    assert outcome(tmp_path) == "ok"


def test_after_an_exception_there_is_neither_program_nor_thread_nor_descriptor(tmp_path):
    def train() -> None:
        with observe(run_dir=tmp_path / "run") as obs, obs.step():
            programs.update(programs_of(os.getpid()))
            raise LookupError

    programs: set[int] = set()
    with pytest.raises(LookupError):
        train()
    assert threads() == []
    assert descriptors_of(os.getpid()) == set()
    gone(programs)


def test_a_job_that_comes_to_its_end_leaves_nothing(tmp_path):
    with loop(tmp_path, 20) as job:
        job.step(3)
        programs = job.programs()
        status, lines, errors = job.end()
        gone(programs)
    assert (status, lines[-1], errors) == (0, "left: []", "")
    assert step_numbers(tmp_path / "run") == list(range(20))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_job_that_a_signal_ends_leaves_nothing_and_a_log_that_can_be_read(tmp_path, number):
    with loop(tmp_path) as job:
        job.step(50)
        wait_for(lambda: list(tmp_path.glob("run/rank=0/steps-*.parquet")))
        kept = read_steps(tmp_path / "run").num_rows
        job.step(kept + 100)
        wait_for(lambda: read_steps(tmp_path / "run").num_rows > kept)
        programs, workers = job.programs(), job.workers()
        if number != signal.SIGINT:  # which has them end first
            for pid in workers:
                os.kill(pid, signal.SIGSTOP)  # or they would notice after 5 s, and end
        assert job.signal(number) == -number
        gone(programs)
        if number != signal.SIGINT:
            assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == workers
    run = tmp_path / "run"
    for path in run.rglob("*.parquet"):
        pq.read_table(path)
    log = RunLog.open(run)
    assert log.unreadable == {}
    numbers = step_numbers(run)
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= kept
    ended = log.info["summary"]
    assert ended["outcome"] == "exception: KeyboardInterrupt" if number == 2 else ended is None


HELD_UP = """
import os, sys, time
import trainobs.runlog.store as store
from trainobs import observe
from trainobs.core.abi import RING
from trainobs.session import observer
from trainobs.steps import collector

def slow(path, data, replace=store.replace_file):
    store.replace_file = replace
    time.sleep(0.6)
    replace(path, data)

store.replace_file = slow
collector.MAX_WAITING, observer.FLUSH_S = RING, 0.1
with observe(run_dir=sys.argv[1], probes="off") as obs:
    end = time.monotonic() + 2
    while time.monotonic() < end:
        with obs.step():
            time.sleep(0.001)
    os.kill(os.getpid(), 9)
"""


def test_steps_that_a_slow_disk_cost_a_run_that_was_killed_are_told(tmp_path):
    run = tmp_path / "run"
    killed = subprocess.run([sys.executable, "-c", HELD_UP, run], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    numbers = step_numbers(run)
    missing = numbers[-1] + 1 - len(numbers)
    assert missing > 0
    assert lost(summarize(RunLog.open(run))) == [
        f"{missing} steps have no record: the observer was held up"
    ]


def test_a_job_whose_worker_is_killed_says_so_and_leaves_nothing(tmp_path):
    with loop(tmp_path) as job:
        job.step(10)
        programs = job.programs()
        os.kill(job.workers()[0], signal.SIGKILL)
        status, lines, _ = job.end()
        gone(programs)
    assert status == 0
    assert any(line.startswith("failed: ") for line in lines)
    assert lines[-1] == "left: []"
    assert outcome(tmp_path).startswith("exception: ")


class Alarm(BaseException):
    """Raised by a signal handler, wherever the program is, as Ctrl-C is."""


@contextmanager
def alarm(delay_ms: float) -> Iterator[Callable[[], None]]:
    """A block in which `Alarm` is raised some time after the function was called."""

    def ring(number: int, frame: object) -> None:
        raise Alarm

    timer = threading.Timer(delay_ms / 1000, os.kill, (os.getpid(), signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with suppress(Alarm):
            yield timer.start
            timer.join()
            time.sleep(0.01)
    finally:
        signal.signal(signal.SIGUSR1, before)


# Raised where an object ends its life, it goes no further.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("delay_ms", [0, 0.1, 0.5, 2, 10, 20, 40])
def test_a_handler_that_raises_while_a_run_ends_does_not_keep_it_from_ending(tmp_path, delay_ms):
    with alarm(delay_ms) as start, observe(run_dir=tmp_path / "run") as obs, obs.step():
        programs = programs_of(os.getpid())
        start()
    wait_for(lambda: threads() == [])
    assert descriptors_of(os.getpid()) == set()
    gone(programs)
    assert step_numbers(tmp_path / "run") == [0]


NEVER_LEFT = """
import sys
from trainobs.integrations.plain import observe

run = observe(run_dir=sys.argv[1])
obs = run.__enter__()
with obs.step():
    print("step 0", flush=True)
"""


def test_a_run_that_is_never_left_ends_with_the_interpreter(tmp_path):
    job = Job("-c", NEVER_LEFT, tmp_path / "run")
    status, lines, errors = job.end()
    assert (status, lines, errors) == (0, ["step 0"], "")
    assert step_numbers(tmp_path / "run") == [0]
