"""What cannot be attached to is told, with what to do, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests import kernel_state
from tests.attach.target import ROOT, Target, attached
from tests.kernel.privileges import become_nobody
from tests.kernel.processes import fork, join
from trainobs.attach import job
from trainobs.attach.process import ENDED, TORCH, find, look_at, out_of_reach, state_of
from trainobs.attach.process import Target as Seen
from trainobs.attach.top import Machine
from trainobs.cli import main
from trainobs.core.errors import AttachError, ProbeError
from trainobs.probes import attached_backend
from trainobs.probes.shared import SharedProbes

pytestmark = pytest.mark.needs_bpf

_TORCH = importlib.util.find_spec("torch")
assert _TORCH is not None
assert _TORCH.origin is not None
TORCH_LIBRARY = Path(_TORCH.origin).parent / "lib" / TORCH


def refusal(pid: int) -> str:
    """Why a process is refused."""
    with pytest.raises(AttachError) as caught:
        find(pid)
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["abc"], "'abc' is not a process ID: see `trainobs top`"),
        (["1.5"], "'1.5' is not a process ID"),
        (["-1"], "'-1' is not a process ID"),
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


def test_a_thread_of_the_kernel_and_number_0_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = "Name:\tkworker\nState:\tI (idle)\nTgid:\t7\nPPid:\t2\nUid:\t0\t0\t0\t0\n"
    (tmp_path / "self").symlink_to(str(os.getpid()))
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(status)
    with monkeypatch.context() as patch:
        patch.setattr("trainobs.attach.process.PROC", tmp_path)
        assert "it is a thread of the kernel" in refusal(7)
    assert "there is no such process" in refusal(0)


def test_a_process_that_has_ended_is_refused() -> None:
    child = fork(lambda: None)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert "it has ended" in refusal(child)
    join(child)


@pytest.mark.parametrize("stage", ["places_in", "ranks_of", "loaded", "AttachedRun", "rule_for"])
def test_a_process_that_ends_while_it_is_attached_to_is_told_to_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    told, tell = os.pipe()

    def work() -> None:
        ctypes.CDLL(str(TORCH_LIBRARY))
        os.write(tell, b".")
        signal.pause()

    child = fork(work)
    os.read(told, 1)
    before = kernel_state.program_ids()
    stages = vars(job)[stage]

    def ends_first(*arguments: Any, **named: Any) -> Any:
        os.kill(child, signal.SIGKILL)
        while state_of(child) not in ENDED:
            time.sleep(0.01)
        return stages(*arguments, **named)

    monkeypatch.setattr(job, stage, ends_first)
    with pytest.raises(AttachError, match="it has just ended|; the process has ended"):
        job.attach(child, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    os.waitpid(child, 0)
    os.close(told)
    os.close(tell)
    assert kernel_state.left_behind(before) == []


MAPS = """
import mmap, sys
file = open(sys.argv[1], "rb")
mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print("mapped", flush=True)
sys.stdin.read()
"""


def test_a_torch_with_a_version_in_its_name_is_one(tmp_path: Path) -> None:
    file = tmp_path / f"{TORCH}.2.14"  # as Debian calls it
    file.write_bytes(bytes(4096))
    command = [sys.executable, "-c", MAPS, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        torch = look_at(process.pid).torch
        process.kill()
    assert torch is not None
    assert torch.path == str(file)


def test_what_a_process_says_of_itself_is_bounded() -> None:
    def ranked(value: str) -> int:
        return Seen(1, 1, 0, "python", {"RANK": value}).number("RANK", 0)

    assert [ranked(value) for value in ("7", "9" * 5000, "-1", "x", "")] == [7, 0, 0, 0, 0]


def test_ctrl_c_before_anything_has_begun_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "attach", interrupted)
    assert main(["attach", "1"]) == 130
    assert capsys.readouterr() == ("", "")


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
        with pytest.raises(AttachError) as caught:
            Machine()
        assert str(caught.value).endswith("do:    run it as root, outside of containers")

    join(fork(work))


def test_root_that_may_not_look_at_a_process_is_not_told_to_be_root() -> None:
    assert out_of_reach(os.getpid(), "no").do.startswith("see what keeps root from it: ")


def test_a_process_that_observes_itself_is_refused_and_a_shell_leads_to_what_it_runs() -> None:
    script = (
        "import os, time, torch\n"
        "from trainobs.probes.local_backend import LocalBackend\n"
        "backend = LocalBackend(('syscalls',))\n"
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


_OTHER_PROC = ["unshare", "--pid", "--fork", "--kill-child"]
_NO_PROC = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc; exec "$@"', "sh"]


@pytest.mark.parametrize("before", [_OTHER_PROC, _NO_PROC])
@pytest.mark.parametrize("command", [["attach", "1"], ["top", "--once"]])
def test_proc_of_another_namespace_or_none_is_told(before: list[str], command: list[str]) -> None:
    """Its numbers are of other processes: one that runs "has just ended", or nobody trains."""
    words = [*before, sys.executable, "-m", "trainobs", *command]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "found: /proc is missing, or that of another namespace" in done.stderr
    assert "mount it anew" in done.stderr


def test_top_in_a_container_does_not_speak_of_the_machine() -> None:
    words = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-m", "trainobs", "top"]
    done = subprocess.run([*words, "--once"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("no training process of this container is running"), done.stderr


def test_a_session_whose_memory_cannot_be_mapped_gives_its_slot_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(attached_backend, "mapping", no_memory)
    probes = SharedProbes(["net"])
    try:
        with pytest.raises(ProbeError, match="no memory"):
            attached_backend.AttachedBackend(probes, 0, os.getpid())
        is_open, *_ = probes._settings_of(0)
        assert not is_open
    finally:
        probes.stop()


@pytest.mark.parametrize("inside", [[], ["--inside"]])
@pytest.mark.parametrize(("place", "found"), [("s3://bucket/run", "a URL"), ("file", "a file")])
def test_a_place_that_can_be_no_run_directory_is_told_before_steps_are_looked_for(
    place, found, inside, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(["attach", str(os.getpid()), "--run-dir", place, *inside]) == 2
    failed, why, _ = capsys.readouterr().err.splitlines()
    assert failed == "bad value for `--run-dir`"
    assert why.endswith(f", {found}")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
