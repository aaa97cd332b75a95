"""Attaching to a process that trains: what is refused, what ends it, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests import freezer, kernel_state
from tests.attach.target import (
    FETCHES,
    LOOPS,
    PATIENCE_S,
    ROOT,
    Target,
    attached,
    beginning,
    check_steps,
    is_patched,
    steps_of,
)
from tests.kernel.processes import A_DAY_AHEAD, fork, join
from trainobs.analysis.summary import summarize
from trainobs.attach.process import find, look_at
from trainobs.attach.run import AttachedRun
from trainobs.attach.top import Machine
from trainobs.core.abi import FileClass, Op, Role
from trainobs.probes.attached_backend import FUNCTIONS, AttachedBackend
from trainobs.probes.shared import SharedProbes
from trainobs.report import brief, full
from trainobs.runlog.reader import RunLog
from trainobs.steps.rule import rule_for

pytestmark = pytest.mark.needs_bpf


def is_seen(pid: int) -> bool:
    """Whether the code of a process has a breakpoint where our uprobe was."""
    torch = look_at(pid).torch
    assert torch is not None
    return is_patched(pid, torch.path, FUNCTIONS["tobs_backward"])


@pytest.fixture
def clean(training: Target) -> Iterator[None]:
    """After the test neither programs nor breakpoints are left."""
    before = kernel_state.program_ids()
    yield
    assert kernel_state.left_behind(before) == []
    deadline = time.monotonic() + 10  # the kernel takes breakpoints out when it comes to it
    while is_seen(training.pid()) and time.monotonic() < deadline:
        time.sleep(0.05)
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
    short, long = brief.render(summary, time.time_ns()), full.render(summary)
    assert f"process {training.pid()}: a step begins with the {FETCHES.told[:12]}" in short
    assert "observed by eBPF, from outside" in short
    assert "observed   by eBPF, from outside" in long
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


def test_it_goes_on_after_a_hangup_behind_nohup(
    training: Target, tmp_path: Path, clean: None
) -> None:
    words = ["--for", "4", "--run-dir", str(tmp_path / "run")]
    process = beginning(training.pid(), words, before=["nohup"])
    process.send_signal(signal.SIGHUP)
    _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, told
    assert "SIGHUP" not in told
    assert summarize(RunLog.open(tmp_path / "run"))["metrics"]["step/duration_ns"]["sum"] > 3e9


def test_the_last_steps_wait_like_those_before(
    training: Target, tmp_path: Path, clean: None
) -> None:
    """Our programs go one by one, and the training goes on meanwhile."""
    assert attached(training.pid(), tmp_path / "run", "--for", "1").returncode == 0
    log = steps_of(tmp_path / "run")
    waits, away = (log.metric(f"{name}_ns") for name in ("loader/wait", "sched/wait_offcpu"))
    assert (waits[log.step() >= 0] > 0).all()
    assert np.median(away[-10:]) < 2_000_000  # it sleeps 5 ms a step, and in no fetch


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


def test_a_process_whose_control_group_is_frozen_is_told_to_be(
    training: Target, tmp_path: Path, clean: None
) -> None:
    with freezer.group() as group:
        (group / "cgroup.procs").write_text(str(training.pid()))
        try:
            with freezer.frozen(group):
                done = attached(training.pid(), tmp_path / "run", "--look", "0.5")
        finally:
            (group.parent / "cgroup.procs").write_text(str(training.pid()))
    assert "its control group is frozen" in done.stderr
    assert "do:    let it go on, as by `docker unpause`" in done.stderr


def test_a_place_that_cannot_hold_a_run_is_told(
    training: Target, tmp_path: Path, clean: None
) -> None:
    (tmp_path / "file").touch()
    done = attached(training.pid(), tmp_path / "file" / "run", "--for", "1")
    assert done.returncode == 2
    assert done.stderr.startswith("cannot write the run log\n  found: ")
    assert "`--run-dir`" in done.stderr


def test_an_observer_that_the_process_has_started_is_none_of_its_children(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(4096))

    def reads(backend: AttachedBackend, role: Role) -> int:
        return int(backend.rows["count"][:, Op.READ, FileClass.OTHER, role].sum())

    def observe() -> None:
        probes = SharedProbes()
        backend = AttachedBackend(probes, 0, os.getppid())
        assert backend.follow(os.getppid())
        for _ in range(2):  # as when the thread that trains is known
            assert backend.follow(os.getppid())
            file.read_bytes()
        join(fork(file.read_bytes))
        assert reads(backend, Role.CHILD) == 0
        while not reads(backend, Role.MAIN):
            time.sleep(0.01)
        backend.stop()
        probes.stop()

    def be_observed() -> None:
        child = fork(observe)
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            file.read_bytes()
            time.sleep(0.01)
        assert ended == (child, 0)

    join(fork(be_observed))


def test_a_process_in_a_namespace_of_its_own_has_the_same_steps(tmp_path: Path) -> None:
    """It is number 1 there."""
    loop = [sys.executable, "-m", LOOPS, "plain", str(tmp_path), "600"]
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *loop]
    outside = subprocess.Popen(command, cwd=ROOT)
    try:
        while not (tmp_path / "pid-0").exists():
            assert outside.poll() is None
            time.sleep(0.05)
        inside = int(Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text())
        done = attached(inside, tmp_path / "run", "--for", "1")
        (tmp_path / "stop").touch()
        outside.wait(PATIENCE_S)
    finally:
        outside.kill()
        outside.wait()
    assert done.returncode == 0, done.stderr
    assert f"attached to process {inside}" in done.stderr
    truth = [tuple(one) for one in json.loads((tmp_path / "truth-0.json").read_text())]
    check_steps(steps_of(tmp_path / "run"), truth, FETCHES)


def test_an_observer_in_a_time_namespace_takes_no_step_for_another_run_s(
    training: Target, tmp_path: Path, clean: None
) -> None:
    done = attached(training.pid(), tmp_path / "run", "--for", "2", before=A_DAY_AHEAD)
    assert done.returncode == 0, done.stderr
    log = steps_of(tmp_path / "run")
    began_ns = RunLog.open(tmp_path / "run").info["clock"]["monotonic_ns"]
    assert 0 <= log.start_ns()[log.step() >= 0][0] - began_ns < PATIENCE_S * 1e9
    assert not summarize(RunLog.open(tmp_path / "run"))["lost"]["are_mixed"]


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
