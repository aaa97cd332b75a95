"""A full `observe()` in a process that runs already, by what another process has it run.

Run by Python 3.14 or newer this is `sys.remote_exec`; else a stand-in (`inside_loops.py`).
"""

from __future__ import annotations

import glob
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import kernel_state
from tests.attach.target import (
    ASKED,
    FETCHES,
    PATIENCE_S,
    StepRule,
    Target,
    bytes_by_step,
    check_steps,
    steps_of,
)
from tests.kernel.privileges import become_nobody
from tests.kernel.processes import fork, join
from trainobs.attach import inside
from trainobs.attach.inside import attach_inside, python_of
from trainobs.attach.process import MappedFile
from trainobs.attach.process import Target as Seen
from trainobs.cli import main
from trainobs.core.errors import AttachError
from trainobs.runlog.reader import RunLog

pytestmark = pytest.mark.needs_bpf

MODULE = "tests.attach.inside_loops"
OPTIMIZED = StepRule("opt", None, "as an optimizer has stepped", is_first=True)
IS_REAL = sys.version_info >= (3, 14)


@pytest.fixture
def begin(
    start: Callable[..., Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Target]]:
    """Starts a loop; after the test nothing is left of ours in the kernel, or in `PLACE`."""
    before, places = kernel_state.program_ids(), set(glob.glob(f"{inside.PLACE}/trainobs-*"))
    if not IS_REAL:

        def by_signal(process: Seen, script: str) -> None:
            (tmp_path / "next").symlink_to(script)
            (tmp_path / "next").replace(tmp_path / "script")
            os.kill(process.tgid, signal.SIGUSR1)

        monkeypatch.setattr(inside, "_remote_exec", by_signal)
        monkeypatch.setattr(inside, "_check", lambda process: None)

    def one(kind: str) -> Target:
        target = start(kind, 600, module=MODULE)
        target.pid()
        return target

    yield one
    assert kernel_state.left_behind(before) == []
    mine = {path for path in glob.glob(f"{inside.PLACE}/trainobs-*") if os.path.isdir(path)}
    assert not [path for path in mine - places if os.path.exists(f"{path}/enter.py")]


def check_nothing_is_left(target: Target) -> None:
    """Nothing of ours is in the process at its end, and it has printed nothing."""
    left = json.loads((target.place / "after.json").read_text())
    assert left.pop("iter").endswith("torch/utils/data/dataloader.py")
    assert left == {"hooks": [1, 0], "threads": [], "handlers": 0, "names": []}
    assert target.output() == ""


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("plain", FETCHES),
        ("accumulated", FETCHES),
        ("two_workers", ASKED),
        ("validated", ASKED),
        ("without_loader", OPTIMIZED),
        ("hooked", FETCHES),
    ],
)
def test_steps_are_those_of_the_loop(
    begin: Callable[[str], Target],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    rule: StepRule,
) -> None:
    target = begin(kind)
    place = attach_inside(target.pid(), seconds=3, look_s=PATIENCE_S, run_dir=tmp_path / "run")
    target.stop()
    truth = target.events()
    check_nothing_is_left(target)
    told = capsys.readouterr().err
    assert rule.told in told
    log = steps_of(place)
    info = RunLog.open(place).info
    assert info["level"] == "ebpf"
    assert info["summary"]["outcome"] == "ok"
    assert rule.told in info["settings"]["attached"]["steps"]
    steps = check_steps(log, truth, rule)
    assert steps.stop - steps.start > 5
    own = log.step() >= 0
    if rule is FETCHES:
        read = log.metric("io/data_read_bytes")[own][:-1].tolist()
        assert read == bytes_by_step(truth, rule)[steps][: len(read)]
    assert (log.metric("phase/optimizer_ns")[own][:-1] > 0).all()


@pytest.mark.parametrize("killed", ["observer", "process"])
def test_nothing_is_left_when_either_side_is_killed(
    begin: Callable[[str], Target], tmp_path: Path, killed: str
) -> None:
    target = begin("plain")
    observer = fork(
        lambda: attach_inside(target.pid(), look_s=PATIENCE_S, run_dir=tmp_path / "run")
    )
    table = tmp_path / "run" / "run.json"
    while not table.exists():
        time.sleep(0.1)
    time.sleep(1)
    if killed == "observer":
        os.kill(observer, signal.SIGKILL)
        os.waitpid(observer, 0)
        while json.loads(table.read_text())["summary"] is None:
            time.sleep(0.1)
        target.stop()
        target.events()
        check_nothing_is_left(target)
    else:
        target.end()
        join(observer)


def test_a_fault_of_ours_is_told_to_who_has_attached_and_to_nobody_else(
    begin: Callable[[str], Target], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = begin("faulty")
    attach_inside(target.pid(), look_s=PATIENCE_S, run_dir=tmp_path / "run")
    told = capsys.readouterr().err
    assert "LookupError: made for a test" in told
    assert "its run has ended: fault in a hook" in told
    target.stop()
    assert len(target.events()) > 60
    check_nothing_is_left(target)


def test_what_a_handler_of_signals_raises_reaches_the_training(
    begin: Callable[[str], Target], tmp_path: Path
) -> None:
    target = begin("preempted")
    with pytest.raises(AttachError, match="cannot attach to process"):
        attach_inside(target.pid(), look_s=PATIENCE_S, run_dir=tmp_path / "run")
    assert target.events()[-1][0] == "preempted"
    check_nothing_is_left(target)
    assert not (tmp_path / "run").exists()


def test_a_refusal_in_the_process_is_told_in_three_lines(
    begin: Callable[[str], Target], tmp_path: Path
) -> None:
    target = begin("plain")
    (tmp_path / "file").touch()
    with pytest.raises(AttachError, match="cannot be written") as caught:
        attach_inside(target.pid(), look_s=PATIENCE_S, run_dir=tmp_path / "file" / "run")
    assert str(caught.value).count("\n") == 2
    target.stop()
    target.events()
    check_nothing_is_left(target)


def test_a_process_that_does_not_come_by_runs_nothing_later(
    begin: Callable[[str], Target], tmp_path: Path
) -> None:
    target = begin("plain")
    os.kill(target.pid(), signal.SIGSTOP)
    try:
        with pytest.raises(AttachError, match="its main thread reached no safe point"):
            attach_inside(target.pid(), look_s=2, run_dir=tmp_path / "run")
    finally:
        os.kill(target.pid(), signal.SIGCONT)
    time.sleep(1)
    target.stop()
    target.events()
    check_nothing_is_left(target)
    assert not (tmp_path / "run").exists()


def process_of(exe: str, tmp_path: Path, **facts: Any) -> Seen:
    """A process of which `/proc` says no more than the file that it runs."""
    place = tmp_path / "1"
    place.mkdir(exist_ok=True)
    (place / "maps").write_text("")
    (place / "exe").symlink_to(exe)
    return Seen(1, 1, os.getuid(), "python", libraries={inside.TORCH: MappedFile("", "")}, **facts)


@pytest.mark.parametrize(
    ("exe", "version"),
    [("/usr/bin/python3.14", (3, 14)), ("/opt/bin/python3", None), ("/bin/sleep", None)],
)
def test_the_version_of_a_python_is_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exe: str, version: tuple[int, int] | None
) -> None:
    monkeypatch.setattr(inside, "PROC", tmp_path)
    assert python_of(process_of(exe, tmp_path)) == version


@pytest.mark.parametrize(
    ("other", "facts", "told"),
    [
        ((3, 11), {}, "it runs Python 3.11, and remote execution came with 3.14"),
        ((3, 99), {}, "it runs Python 3.99, and this one is 3."),
        (None, {}, "it runs Python of an unknown version"),
    ],
)
def test_another_python_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Any, facts: Any, told: str
) -> None:
    monkeypatch.setattr(inside, "python_of", lambda process: other)
    with pytest.raises(AttachError) as caught:
        inside._check(process_of("/bin/sleep", tmp_path, **facts))
    assert told in str(caught.value)
    assert "leave out `--inside`" in str(caught.value)


def test_a_switch_of_the_process_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "python_of", lambda process: sys.version_info[:2])
    monkeypatch.setattr(inside, "_FIRST", sys.version_info[:2])
    monkeypatch.setattr(sys, "remote_exec", None, raising=False)
    off = {"PYTHON_DISABLE_REMOTE_DEBUG": "1"}
    with pytest.raises(AttachError, match="PYTHON_DISABLE_REMOTE_DEBUG is in its environment"):
        inside._check(process_of("/bin/sleep", tmp_path, environment=off))


def test_another_users_process_is_refused_before_anything_is_written(
    begin: Callable[[str], Target],
) -> None:
    pid = begin("plain").pid()

    def work() -> None:
        become_nobody()
        assert main(["attach", str(pid), "--inside"]) == 2

    join(fork(work))


@pytest.mark.skipif(not IS_REAL, reason="needs Python 3.14")
def test_python_itself_may_refuse(start: Callable[..., Target], tmp_path: Path) -> None:
    os.environ["PYTHON_DISABLE_REMOTE_DEBUG"] = "1"
    try:
        target = start("plain", 600, module=MODULE)
        pid = target.pid()
    finally:
        del os.environ["PYTHON_DISABLE_REMOTE_DEBUG"]
    with pytest.raises(AttachError, match="PYTHON_DISABLE_REMOTE_DEBUG is in its environment"):
        attach_inside(pid, run_dir=tmp_path / "run")
