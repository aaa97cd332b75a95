"""Attaching to a process that trains: what is refused, what ends it, and what is left behind."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import kernel_state
from tests.attach.target import (
    FETCHES,
    PATIENCE_S,
    ROOT,
    Target,
    attached,
    check_steps,
    is_patched,
    steps_of,
)
from tests.kernel.privileges import become_nobody
from tests.kernel.processes import fork, join
from trainobs.analysis.summary import summarize
from trainobs.attach.process import find, look_at
from trainobs.attach.rule import rule_for
from trainobs.attach.run import AttachedRun
from trainobs.attach.top import Machine
from trainobs.cli import main
from trainobs.core.errors import AttachError
from trainobs.probes.outside import FUNCTIONS
from trainobs.probes.shared import SharedProbes
from trainobs.report import brief, page
from trainobs.runlog.reader import RunLog

pytestmark = pytest.mark.needs_bpf


def beginning(pid: int, words: list[str]) -> subprocess.Popen[str]:
    """`trainobs attach` that goes on; returns once it is attached."""
    command = [sys.executable, "-m", "trainobs", "attach", str(pid), *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stderr is not None
    assert "attached to process" in process.stderr.readline()
    return process


def is_seen(pid: int) -> bool:
    """Whether the code of a process has a breakpoint where our uprobe was."""
    torch = look_at(pid).torch
    assert torch is not None
    return is_patched(pid, torch.path, FUNCTIONS["tobs_backward"])


def refusal(pid: int) -> str:
    """Why a process is refused."""
    with pytest.raises(AttachError) as caught:
        find(pid)
    return str(caught.value)


@pytest.fixture
def clean(training: Target) -> Iterator[None]:
    """After the test neither programs nor breakpoints are left."""
    before = kernel_state.program_ids()
    yield
    assert kernel_state.left_behind(before) == []
    assert not is_seen(training.pid())


def test_a_run_from_outside_has_a_report_that_says_so(
    training: Target, tmp_path: Path, clean: None
) -> None:
    done = attached(training.pid(), tmp_path / "run", "--for", "2")
    assert done.returncode == 0, done.stderr
    run = RunLog.open(tmp_path / "run")
    summary = summarize(run)
    assert run.info["level"] == "attached"
    assert run.info["summary"]["losses"].keys() == {"tasks", "requests", "classes", "runs"}
    short, long = brief.render(summary, time.time_ns()), page.render(summary)
    assert f"process {training.pid()}: a step begins with the {FETCHES.told[:12]}" in short
    assert "observed by eBPF, from outside" in short
    assert "from outside of the process" in long
    assert summary["metrics"]["io/checkpoint_write_bytes"]["sum"] is None
    assert "heckpoints" not in long.partition("Not measured in")[0]
    assert summary["metrics"]["python/gc_ns"]["mean"] is None
    assert summary["verdict"]["run"]["kind"] is not None


def test_a_breakpoint_would_be_seen(training: Target, tmp_path: Path, clean: None) -> None:
    assert not is_seen(training.pid())
    process = beginning(training.pid(), ["--run-dir", str(tmp_path / "run")])
    try:
        assert is_seen(training.pid())
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_a_complete_run_log(
    training: Target, tmp_path: Path, clean: None, number: signal.Signals
) -> None:
    process = beginning(training.pid(), ["--run-dir", str(tmp_path / "run")])
    time.sleep(1)
    process.send_signal(number)
    _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, told
    assert json.loads((tmp_path / "run" / "run.json").read_text())["summary"]["outcome"] == "ok"
    assert len(steps_of(tmp_path / "run").step()) > 20


def test_a_killed_observer_leaves_nothing(training: Target, tmp_path: Path, clean: None) -> None:
    process = beginning(training.pid(), ["--run-dir", str(tmp_path / "run")])
    process.kill()
    process.communicate(timeout=PATIENCE_S)


def test_the_end_of_the_process_ends_the_run(start: Callable[..., Target], tmp_path: Path) -> None:
    before = kernel_state.program_ids()
    target = start("plain", 600)
    process = beginning(target.pid(), ["--run-dir", str(tmp_path / "run")])
    time.sleep(1.5)
    target.stop()
    truth = target.events()
    _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, told
    check_steps(steps_of(tmp_path / "run"), truth, FETCHES)
    assert kernel_state.left_behind(before) == []


def test_a_killed_process_ends_the_run_as_well(
    start: Callable[..., Target], tmp_path: Path
) -> None:
    target = start("plain", 600)
    process = beginning(target.pid(), ["--run-dir", str(tmp_path / "run")])
    time.sleep(1.5)
    target.end()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert len(steps_of(tmp_path / "run").step()) > 20


def test_another_program_in_its_place_ends_the_run(
    start: Callable[..., Target], tmp_path: Path
) -> None:
    target = start("replaced", 600)
    process = beginning(target.pid(), ["--run-dir", str(tmp_path / "run")])
    time.sleep(1.5)
    target.stop()
    _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, told
    assert "the process runs another program now" in told
    truth = [tuple(one) for one in json.loads((tmp_path / "truth-0.json").read_text())]
    check_steps(steps_of(tmp_path / "run"), truth, FETCHES)


def test_a_process_that_is_stopped_is_told_to_be(
    training: Target, tmp_path: Path, clean: None
) -> None:
    os.kill(training.pid(), signal.SIGSTOP)
    try:
        done = attached(training.pid(), tmp_path / "run", "--look", "0.5")
    finally:
        os.kill(training.pid(), signal.SIGCONT)
    assert "it is stopped by a signal" in done.stderr
    assert f"do:    let it go on: `kill -CONT {training.pid()}`" in done.stderr


def test_a_place_that_cannot_hold_a_run_is_told(
    training: Target, tmp_path: Path, clean: None
) -> None:
    (tmp_path / "file").touch()
    done = attached(training.pid(), tmp_path / "file" / "run", "--for", "1")
    assert done.returncode == 2
    assert done.stderr.startswith("cannot write the run log\n  found: ")
    assert "`--run-dir`" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["abc"], "'abc' is no number of a process: see `trainobs top`"),
        (["1.5"], "'1.5' is no number of a process"),
        (["1", "--for", "0"], "'0' is no time: give seconds, more than 0"),
        (["1", "--for", "inf"], "'inf' is no time"),
        (["1", "--look", "soon"], "'soon' is no time"),
    ],
)
def test_what_is_no_number_is_told(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["attach", *words])
    assert caught.value.code == 2
    assert told in capsys.readouterr().err


def test_what_is_no_training_process_is_refused() -> None:
    assert "there is no such process" in refusal(2**22 + 1)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert thread.native_id is not None
    assert f"it is a thread of process {os.getpid()}" in refusal(thread.native_id)
    stop.set()
    thread.join()


def test_a_process_that_has_ended_is_refused() -> None:
    child = fork(lambda: None)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert "it has ended" in refusal(child)
    join(child)


def test_the_command_line_tells_it_in_three_lines(tmp_path: Path) -> None:
    done = attached(2**22 + 1, tmp_path / "run")
    assert (done.returncode, done.stderr.count("\n")) == (2, 3)
    assert not (tmp_path / "run").exists()


def test_another_users_process_is_refused(training: Target) -> None:
    pid = training.pid()

    def work() -> None:
        become_nobody()
        with pytest.raises(AttachError, match="it is of another user"):
            find(pid)

    join(fork(work))


def test_a_process_that_observes_itself_is_refused_and_a_shell_leads_to_what_it_runs() -> None:
    script = (
        "import os, time, torch\n"
        "from trainobs.probes.kernel_side import KernelSide\n"
        "side = KernelSide(('syscalls',))\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(100)\n"
    )
    command = ["sh", "-c", f"{sys.executable} -c {shlex.quote(script)}; true"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as shell:
        assert shell.stdout is not None
        observed = int(shell.stdout.readline())
        try:
            assert "observed by trainobs itself" in refusal(observed)
            assert f"do:    trainobs attach {observed}" in refusal(shell.pid)
        finally:
            os.kill(observed, signal.SIGKILL)


def test_top_has_the_rate_of_each_process(training: Target, clean: None) -> None:
    machine = Machine(lambda: [look_at(training.pid())])
    try:
        deadline = time.monotonic() + PATIENCE_S
        machine.look()
        while not machine.is_settled and time.monotonic() < deadline:
            machine.look()
            time.sleep(0.1)
        machine.rows()
        time.sleep(2)
        (row,) = machine.rows()
    finally:
        machine.close()
    log_rate = row.steps_per_s
    assert log_rate is not None
    assert 20 < log_rate < 200  # it sleeps 5 ms a step
    assert row.waits is not None
    assert row.waits["else"] is not None
    assert row.waits["else"] > 0.3
    assert row.read_bytes_per_s == pytest.approx(3 * 8192 * log_rate, rel=0.1)


def test_two_observers_see_the_same_steps(training: Target, tmp_path: Path, clean: None) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    threads = [
        threading.Thread(target=attached, args=(training.pid(), run, "--for", "2")) for run in runs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read = []
    for run in runs:
        log = steps_of(run)
        columns = log.start_ns(), log.metric("io/data_read_bytes")
        read.append(dict(zip(*(column.tolist() for column in columns), strict=True)))
    begins = [sorted(one) for one in read]
    near = [
        next((other for other in begins[1] if abs(other - begin) < 2_000_000), None)
        for begin in begins[0]
    ]
    same = [read[0][a] == read[1][b] for a, b in zip(begins[0], near, strict=True) if b is not None]
    assert len(same) > 10
    assert sum(same) >= len(same) - 3  # the set-up of either


def attach_once(pid: int) -> None:
    """Attach, see what a step is, and let go."""
    probes = SharedProbes()
    run = AttachedRun(find(pid), probes, 0)
    try:
        while not (rule := rule_for(run.clock.look())):
            time.sleep(0.02)
        run.start(rule, times_fetches=run.times_fetches(rule))
    finally:
        run.end("not recorded")
        probes.stop()


@pytest.mark.parametrize("cycles", [3, 100])
def test_cycles_of_attaching_leave_nothing(training: Target, clean: None, cycles: int) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(cycles):
        attach_once(training.pid())
    assert len(os.listdir("/proc/self/fd")) == descriptors
