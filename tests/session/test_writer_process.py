"""The writer process holds the sinks of a run, is nobody's child, and whatever becomes of it,
nothing is lost and nothing is twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.integrations.models import logged_steps, read_steps, step_numbers
from tests.session.jobs import wait_for, without_last_lines
from tests.session.writers import writer_of, writers
from trainobs import observe
from trainobs.core.errors import SettingError
from trainobs.runlog.parquet import read_columns
from trainobs.runlog.reader import RunLog
from trainobs.session.sink_router import SWITCH


class Training:
    """`writer_job.py`, and its writer process."""

    def __init__(self, run: Path, *command: str, **environment: str) -> None:
        self.run = run
        self.process = subprocess.Popen(
            [*command, sys.executable, "-m", "tests.session.writer_job", run],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                SWITCH: "process",
                **environment,
            },
            start_new_session=True,
        )

    def writer(self) -> int:
        """Its pid, once it is there."""
        found = [0]

        def look() -> bool:
            found[0] = writer_of(self.process.pid) or 0
            return bool(found[0])

        wait_for(look)
        return found[0]

    def recorded(self) -> int:
        """Steps in the run log so far."""
        try:
            return len(step_numbers(self.run))
        except (OSError, ValueError):
            return 0

    def wait_for_more(self) -> None:
        """Wait until steps are recorded that were not before."""
        before = self.recorded()
        wait_for(lambda: self.recorded() > before)

    def step(self) -> int:
        """A step that it comes to from now on."""
        return int(self.process.stdout.readline().split()[1])

    def end(self) -> int:
        """Have it come to its end; how many steps it made."""
        out, err = self.process.communicate("\n", timeout=120)
        assert (self.process.returncode, without_last_lines(err)) == (0, "")
        return int(out.splitlines()[-1].split()[1])


@contextmanager
def training(run: Path, *command: str, **environment: str) -> Iterator[Training]:
    """A training, and at the end neither it nor its writer process."""
    job = Training(run, *command, **environment)
    try:
        yield job
    finally:
        writer = writer_of(job.process.pid)
        job.process.kill()
        job.process.communicate()
        if writer:
            with suppress(ProcessLookupError):
                os.kill(writer, signal.SIGCONT)
            wait_for(lambda: writer not in writers())


def written_by(run: Path) -> str:
    return RunLog.open(run).info["settings"]["written_by"]


def check_record(run: Path, steps: int) -> None:
    """Every step is there, once, with its cells and its points."""
    assert step_numbers(run) == list(range(steps))
    kernel = Counter()
    for path in run.glob("rank=0/kernel-*.parquet"):
        part = read_columns(path, ["step", "op", "class", "role"]).to_pydict()
        kernel.update(zip(*part.values(), strict=True))
    assert set(kernel.values()) <= {1}
    points = logged_steps(run / "tensorboard")
    assert points == sorted(set(points))
    assert points[:200] == list(range(min(200, steps)))
    assert steps - 10 <= points[-1] + 1 <= steps


def test_a_writer_process_writes_what_the_thread_would(tmp_path):
    with training(tmp_path / "run") as job:
        job.writer()
        job.wait_for_more()
        steps = job.end()
    check_record(tmp_path / "run", steps)
    assert written_by(tmp_path / "run") == "process"
    assert RunLog.open(tmp_path / "run").info["summary"]["outcome"] == "ok"


def test_a_run_that_is_to_have_none_has_none(tmp_path):
    with training(tmp_path / "run", TRAINOBS_WRITER="") as job:
        job.wait_for_more()
        assert writer_of(job.process.pid) is None
        steps = job.end()
    check_record(tmp_path / "run", steps)
    assert written_by(tmp_path / "run") == "thread"


@pytest.mark.parametrize("held_up", [False, True])
def test_when_the_writer_process_is_killed_the_thread_goes_on_and_nothing_is_lost_or_twice(
    tmp_path, held_up
):
    with training(tmp_path / "run") as job:
        writer = job.writer()
        job.wait_for_more()
        if held_up:
            os.kill(writer, signal.SIGSTOP)
            last = job.step()
            while job.step() < last + 300:
                pass
        os.kill(writer, signal.SIGKILL)
        job.wait_for_more()
        steps = job.end()
    check_record(tmp_path / "run", steps)
    assert written_by(tmp_path / "run").startswith("thread: the writer process was given up: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_for_the_training_do_not_end_the_writer_process(tmp_path, number):
    with training(tmp_path / "run") as job:
        os.kill(job.writer(), number)
        job.wait_for_more()
        steps = job.end()
    check_record(tmp_path / "run", steps)
    assert written_by(tmp_path / "run") == "process"


def test_a_killed_training_loses_nothing_that_was_handed_over(tmp_path):
    with training(tmp_path / "run") as job:
        writer = job.writer()
        job.wait_for_more()
        os.kill(writer, signal.SIGSTOP)  # what is handed over now is in nobody's memory
        first = job.step()
        while job.step() < first + 1000:
            pass
        os.killpg(job.process.pid, signal.SIGKILL)
        job.process.wait()
        handed_over = job.recorded()
        os.kill(writer, signal.SIGCONT)
        wait_for(lambda: writer not in writers())
    steps = job.recorded()
    assert steps > max(handed_over, first + 500)
    assert step_numbers(tmp_path / "run") == list(range(steps))
    assert RunLog.open(tmp_path / "run").info["summary"] is None
    assert not list((tmp_path / "run").rglob("*.tmp"))


@pytest.mark.needs_bpf
def test_what_the_writer_process_does_counts_for_no_step(tmp_path):
    with training(tmp_path / "run") as job:
        job.writer()
        for _ in range(3):
            job.wait_for_more()
        job.end()
    written = read_steps(tmp_path / "run")["io/write_bytes"].to_pylist()
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert sum(filter(None, written)) < 20_000  # the lines of the job
    assert sum(path.stat().st_size for path in files) > 50_000


def test_what_the_writer_process_meets_is_told_by_the_training(disk):
    place = disk("size=512k")
    with training(place / "run") as job:
        job.writer()
        job.wait_for_more()
        with suppress(OSError), (place / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(4096)) == 4096:
                pass
        first = job.step()
        while job.step() < first + 500:
            pass
        _, errors = job.process.communicate("\n", timeout=120)
        summary = RunLog.open(place / "run").info["summary"]
    assert errors.count("cannot store the record in the runlog; it is kept, and tried again") == 1
    lost = summary["lost_steps"]["runlog"]
    assert lost > 0
    assert summary["lost_because"]["runlog"] == "ENOSPC: No space left on device"
    assert f"the runlog lost the records of {lost} steps" in errors


NO_CHILD = """
import os, signal, sys, time
from multiprocessing import active_children
from tests.session.writers import writer_of
from trainobs import observe
from trainobs.session import observer
observer.HAND_OVER_S = 0.2
with observe(run_dir=sys.argv[1], probes="off", quiet=True) as obs:
    while not (writer := writer_of(os.getpid())):
        with obs.step():
            time.sleep(0.01)
    assert active_children() == []
    assert os.getsid(writer) != os.getsid(0) and os.getpgid(writer) != os.getpgrp()
    for flags in (os.WNOHANG, os.WNOHANG | 0x40000000):
        try:
            print(os.waitpid(-1, flags))
        except ChildProcessError:
            print("no child")
"""


def test_the_writer_process_is_nobodys_child_and_in_a_session_of_its_own(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), SWITCH: "process"}
    command = [sys.executable, "-c", NO_CHILD, tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("no child\nno child\n", "")


LOST = """
import os, signal, sys, time
from pathlib import Path
from tests.session.writers import writer_of
from trainobs import observe
from trainobs.session import observer, sink_router
observer.FLUSH_S = observer.HAND_OVER_S = 0.1
def no_more_memory(*_):
    raise MemoryError
def steps(obs, count):
    for _ in range(count):
        with obs.step():
            time.sleep(0.01)
run = Path(sys.argv[1])
with observe(run_dir=run, probes="off", quiet=True) as obs:
    while not list(run.rglob("steps-*.parquet")):
        steps(obs, 10)
    writer = writer_of(os.getpid())
    os.kill(writer, signal.SIGSTOP)  # so that calls wait for it
    steps(obs, 50)
    sink_router.unpack = no_more_memory
    os.kill(writer, signal.SIGKILL)
    steps(obs, 50)
print("trained")
"""


def test_where_nobody_can_take_over_what_was_written_stays_and_the_training_goes_on(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), SWITCH: "process"}
    command = [sys.executable, "-c", LOST, tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "cannot go on observing; the training goes on" in done.stderr
    steps = step_numbers(tmp_path / "run")
    assert steps == list(range(len(steps)))
    assert steps


REFUSALS = {
    "no interpreter": "sys.executable = None",
    "another program": "sys.executable = '/bin/sleep'",
    "no such file": "sys.executable = '/nowhere/python'",
    "one that fails": "sys.executable = sys.argv[2]",
    "no more memory": "no_more_memory()",
}

REFUSED = """
import os, sys, time
from trainobs import observe
from trainobs.session import observer
observer.FLUSH_S = observer.HAND_OVER_S = 0.1
def no_more_memory():
    def refuse(*_):
        raise OSError(12, "Cannot allocate memory")
    os.memfd_create = refuse
with observe(run_dir=sys.argv[1], probes="off", quiet=True) as obs:
    {refusal}
    for step in range(100):
        with obs.step():
            time.sleep(0.01)
"""


@pytest.mark.parametrize("refusal", REFUSALS)
def test_where_none_can_be_started_the_thread_writes(tmp_path, refusal):
    (tmp_path / "python").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "python").chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), SWITCH: "process"}
    job = REFUSED.format(refusal=REFUSALS[refusal])
    command = [sys.executable, "-c", job, tmp_path / "run", tmp_path / "python"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert step_numbers(tmp_path / "run") == list(range(100))
    assert written_by(tmp_path / "run").startswith("thread: no writer process was started: ")


def test_a_value_of_the_switch_that_means_nothing_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(SWITCH, "yes")
    with pytest.raises(SettingError, match=SWITCH) as raised:
        observe(run_dir=tmp_path / "run", probes="off")
    assert raised.value.found == "'yes'"
    monkeypatch.setenv(SWITCH, "thread")
    with observe(run_dir=tmp_path / "run", probes="off", quiet=True) as obs:
        pass
    assert written_by(obs.run_dir) == "thread"
