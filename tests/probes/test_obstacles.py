"""What keeps a process from eBPF is named: for real where that can be made, else by its files."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.kernel.privileges import CAP_BPF, CAP_PERFMON, become_nobody, keep_capabilities
from tests.kernel.processes import in_child
from tests.kernel_state import BPF_SYSCALL
from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.probes import obstacles
from trainobs.probes.doctor import examine, render
from trainobs.probes.local_backend import LocalBackend
from trainobs.probes.service_backend import who_may

CLONE_NEWUSER = 0x10000000
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, EPERM = 0x7FFF0000, 0x00050001  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO | EPERM
ENOSYS, KILL = 0x00050026, 0x80000000  # likewise, and SECCOMP_RET_KILL_PROCESS
EXECVE = {"x86_64": 59, "aarch64": 221}[platform.machine()]

libc = ctypes.CDLL(None, use_errno=True)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone has the capabilities")


def refused() -> ProbeError:
    with pytest.raises(ProbeError) as caught:
        LocalBackend()
    assert caught.value.cause is ProbeCause.NO_PERMISSION, caught.value
    return caught.value


def enter_user_namespace() -> None:
    uid = os.getuid()
    assert libc.unshare(CLONE_NEWUSER) == 0, os.strerror(ctypes.get_errno())
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")


def refuse_bpf(answer: int = EPERM, number: int = BPF_SYSCALL) -> None:
    """As container engines do: a filter that answers EPERM to bpf(2), or to another call."""
    code = [
        (0x20, 0, 0, 0),  # load seccomp_data::nr
        (0x15, 0, 1, number),  # is it that one?
        (0x06, 0, 0, answer),
        (0x06, 0, 0, ALLOW),
    ]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    program = ctypes.create_string_buffer(
        struct.pack("HxxxxxxQ", len(code), ctypes.addressof(filters))
    )
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) == 0


@pytest.mark.needs_bpf
@needs_root
@pytest.mark.parametrize(
    ("hinder", "found", "do"),
    [
        (enter_user_namespace, "user namespace", "trainobs-probed of the host"),
        (refuse_bpf, "seccomp filter refuses bpf(2)", "seccomp profile"),
        (partial(refuse_bpf, ENOSYS), "seccomp filter refuses bpf(2)", "seccomp profile"),
        (partial(refuse_bpf, KILL), "seccomp filter ends every", "SystemCallFilter="),
    ],
)
def test_what_hinders_a_process_with_every_capability_is_named(
    hinder: Callable[[], None], found: str, do: str
) -> None:
    def attempt() -> None:
        hinder()
        error = refused()
        assert found in error.found
        assert do in error.do
        page = render(examine())
        assert "In the way: " in page
        assert found.split()[0] in page.partition("In the way: ")[2]
        assert "probe object  yes" in page

    in_child(attempt)


@pytest.mark.needs_bpf
@needs_root
def test_who_may_start_nothing_is_not_said_to_be_ended_by_bpf() -> None:
    def attempt() -> None:
        refuse_bpf(KILL, EXECVE)
        LocalBackend().stop()

    in_child(attempt)


def become_nobody_of_a_container() -> None:
    """Where root has no more than a few capabilities, as a container engine leaves to it."""
    for number in (CAP_PERFMON, CAP_BPF):
        assert libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) == 0
    become_nobody()


@pytest.mark.needs_bpf
@needs_root
def test_to_try_what_would_end_a_process_leaves_no_core_file(tmp_path: Path) -> None:
    def attempt() -> None:
        os.chdir(tmp_path)
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
        refuse_bpf(KILL)
        refused()

    in_child(attempt)
    assert not list(tmp_path.iterdir())


@pytest.mark.needs_bpf
@needs_root
@pytest.mark.parametrize("give_up", [keep_capabilities, become_nobody_of_a_container])
def test_who_is_in_a_container_is_not_told_to_run_as_root(give_up: Callable[[], None]) -> None:
    def attempt() -> None:
        give_up()
        error = refused()
        assert "lacks CAP_BPF or CAP_PERFMON" in error.found
        assert "run as root" not in error.do
        assert "--cap-add BPF --cap-add PERFMON" in error.do

    in_child(attempt)


@pytest.mark.needs_bpf
@needs_root
def test_capabilities_are_no_remedy_in_a_user_namespace() -> None:
    def attempt() -> None:
        enter_user_namespace()
        keep_capabilities()
        error = refused()
        assert "user namespace" in error.found
        assert "CAP_BPF" not in error.do

    in_child(attempt)


@needs_root
def test_a_group_that_a_user_namespace_lacks_is_not_called_nogroup(tmp_path: Path) -> None:
    os.chown(tmp_path, 0, 12345)

    def attempt() -> None:
        assert who_may(tmp_path) == "12345"
        enter_user_namespace()
        assert who_may(tmp_path).startswith(f"the one that owns {tmp_path} on the host")

    in_child(attempt)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("none [integrity] confidentiality\n", "integrity"),
        ("[none] integrity confidentiality\n", "none"),
        ("none integrity [confidentiality]\n", "confidentiality"),
        ("", None),
    ],
)
def test_lockdown_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, state: str | None
) -> None:
    (tmp_path / "lockdown").write_text(text)
    monkeypatch.setattr(obstacles, "LOCKDOWN", tmp_path / "lockdown")
    assert obstacles.lockdown() == state
    named = any("locked down" in line for line in obstacles.obstacles())
    assert named == (state == "confidentiality")  # integrity lets the probes read


@pytest.mark.parametrize(("text", "on"), [("1\n", True), ("2\n", True), ("0\n", False)])
def test_a_jit_that_is_off_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, on: bool
) -> None:
    (tmp_path / "jit").write_text(text)
    monkeypatch.setattr(obstacles, "JIT", tmp_path / "jit")
    assert obstacles.jit() is on
    assert any("not compiled" in line for line in obstacles.obstacles()) is not on


def test_what_cannot_be_read_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("LOCKDOWN", "JIT", "UID_MAP"):
        monkeypatch.setattr(obstacles, name, tmp_path / "missing")
    assert (obstacles.lockdown(), obstacles.jit()) == (None, None)
    assert not obstacles.in_user_namespace()
