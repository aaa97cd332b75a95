"""One poller a node: one process makes the calls, all have the readings of their device."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from tests.gpu.machine import GPU_IS_LOST, Call, uuid

NOBODY = 65534
FALSE = {"reading": {"begin_ns": 0, "end_ns": 1, "values": {"gpu/sm_active_ratio": 0.123}}}


@pytest.fixture
def started() -> Iterator[Callable[[subprocess.Popen[str]], subprocess.Popen[str]]]:
    """Sees that a process ends with the test."""
    processes = []

    def keep(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        processes.append(process)
        return process

    yield keep
    for process in processes:
        with process:
            process.kill()


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    """Read stdout up to a line."""
    while (said := process.stdout.readline().rstrip()) != line:
        assert said, process.stderr.read()


def end(process: subprocess.Popen[str]) -> dict:
    """Let a `watch` job end; what it returns."""
    out, said = process.communicate("\n")
    assert process.returncode == 0, said
    return json.loads(out.splitlines()[-1])


def name_of(machine) -> str:
    """The abstract name that the jobs of a test use."""
    return f"\0trainobs-test-{machine.folder.name}-{os.getpid()}"


def until(claim: Callable[[], object]) -> None:
    """Wait until something holds, 60 s at most."""
    deadline = time.monotonic() + 60
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def threads_of(calls: list[Call]) -> set[int]:
    """Threads that made calls."""
    return {call.tid for call in calls}


def test_samples_are_never_closer_than_the_gpu_refreshes_them(machine):
    readings = machine.run("poll", 1.0, 0.02)
    samples = machine.calls("nvmlGpmSampleGet")
    assert readings > len(samples) >= 3
    assert min(b.at_ns - a.at_ns for a, b in pairwise(samples)) >= 100_000_000


def test_a_poller_that_is_told_to_stop_gives_everything_back(machine):
    machine.run("poll", 0.3, 0.1)
    allocated, freed = machine.calls("nvmlGpmSampleAlloc"), machine.calls("nvmlGpmSampleFree")
    assert len(allocated) == len(freed) == 2
    assert len(machine.calls("nvmlShutdown")) == 1


def test_two_ranks_share_one_poller_and_each_has_its_own_device(machine_of, started):
    machine = machine_of(2)
    machine.set(1, gpm__2=50)
    first = started(machine.start("watch", uuid(0)))
    wait_for(first, "first reading")
    threads = threads_of(machine.calls())
    second = started(machine.start("watch", uuid(1)[4:]))
    wait_for(second, "first reading")
    followed, polled = end(second), end(first)
    assert followed["last"]["gpu/sm_active_ratio"] == 0.5
    assert polled["last"]["gpu/sm_active_ratio"] == 0.875
    assert followed["about"] == polled["about"] | {"uuid": uuid(1), "name": "Stand-in 1"}
    assert threads_of(machine.calls()) == threads
    assert len(threads) == 1
    assert machine.calls("nvmlDeviceGetHandleByUUID")[-1].device == 1


def test_a_device_is_read_no_more_when_the_last_that_wanted_it_has_gone(machine_of, started):
    machine = machine_of(2)
    first = started(machine.start("watch", uuid(0)))
    wait_for(first, "first reading")
    second = started(machine.start("watch", uuid(1)))
    wait_for(second, "first reading")
    end(second)
    until(lambda: len(machine.calls("nvmlGpmSampleFree")) == 2)
    count = len(machine.calls("nvmlDeviceGetFieldValues"))
    until(lambda: len(machine.calls("nvmlDeviceGetFieldValues")) > count + 3)
    last = machine.calls("nvmlDeviceGetFieldValues")[count + 1 :]
    assert {call.device for call in last} == {0}
    end(first)


@pytest.mark.parametrize("how", [signal.SIGKILL, None])
def test_when_the_poller_ends_another_takes_its_place(machine, started, how):
    first = started(machine.start("watch", uuid(0)))
    wait_for(first, "first reading")
    second = started(machine.start("watch", uuid(0)))
    wait_for(second, "first reading")
    threads = threads_of(machine.calls())
    if how:
        first.send_signal(how)
    else:
        end(first)
    until(lambda: len(threads_of(machine.calls("nvmlDeviceGetFieldValues"))) == 2)
    assert len(threads) == 1
    before = len(machine.calls("nvmlGpmMetricsGet"))
    until(lambda: len(machine.calls("nvmlGpmMetricsGet")) > before + 2)
    assert end(second)["last"]["gpu/sm_active_ratio"] == 0.875


@pytest.mark.parametrize("lost", [0, 1])
def test_a_device_that_fails_is_left_out_alone(machine_of, started, lost):
    """The poller's own, or that of one who follows."""
    machine = machine_of(2)
    first = started(machine.start("watch", uuid(0), 0.2, "warn"))
    wait_for(first, "first reading")
    second = started(machine.start("watch", uuid(1), 0.2, "warn"))
    wait_for(second, "first reading")
    machine.set(lost, fail=GPU_IS_LOST)
    until(lambda: any(call.result == GPU_IS_LOST for call in machine.calls()))

    def rounds() -> int:
        """How often the other one was read."""
        read = machine.calls("nvmlDeviceGetFieldValues")
        return sum(call.device == 1 - lost for call in read)

    before = rounds()
    until(lambda: rounds() >= before + 3)  # it is read on
    failed = [call for call in machine.calls() if call.result == GPU_IS_LOST]
    assert len(failed) == 1, "a device that is lost is not asked again"
    said = [job.communicate("\n")[1] for job in (second, first)][::-1]
    assert said[lost].count("a GPU is read no more") == said[lost].count(uuid(lost)) == 1
    assert said[1 - lost] == ""


def test_the_first_window_of_a_device_that_came_later_is_not_a_short_one(machine_of, started):
    machine = machine_of(2)
    first = started(machine.start("watch", uuid(0), 1.0))
    wait_for(first, "first reading")
    time.sleep(0.6)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.settimeout(60)
        link.connect(name_of(machine))
        link.send(json.dumps({"uuid": uuid(1), "visible": ""}).encode())
        assert json.loads(link.recv(9000))["about"]["uuid"] == uuid(1)
        reading = json.loads(link.recv(9000))["reading"]
    assert reading["end_ns"] - reading["begin_ns"] > 1_000_000_000
    end(first)


def test_a_poller_that_cannot_read_a_device_leaves_it_to_who_asked(machine, started):
    first = started(machine.start("watch", uuid(0)))
    wait_for(first, "first reading")
    second = started(machine.start("watch", uuid(3)))
    wait_for(second, "started")
    until(lambda: len(machine.calls("nvmlInitWithFlags")) == 2)
    assert end(second)["about"]["gpm"].startswith(f"NVML: {uuid(3)}: ")
    assert end(first)["readings"] > 0


@pytest.mark.parametrize(
    "packet",
    [b"", b"\xff\xfe", b"[]", b"{}", b'{"uuid": 7}', b"x" * 20_000, b"[" * 8000],
    ids=["empty", "no-text", "list", "nothing", "number", "too-long", "too-deep"],
)
def test_a_follower_that_talks_nonsense_is_hung_up_on(machine, started, packet):
    first = started(machine.start("watch", uuid(0)))
    wait_for(first, "first reading")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.settimeout(60)
        link.connect(name_of(machine))
        link.send(packet)
        if packet:
            assert link.recv(100) == b""
    before = len(machine.calls())
    until(lambda: len(machine.calls()) > before + 20)
    end(first)


def test_a_follower_that_does_not_read_holds_up_nobody(machine, started):
    first = started(machine.start("watch", uuid(0), 0.01))
    wait_for(first, "first reading")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        link.connect(name_of(machine))
        link.send(json.dumps({"uuid": uuid(0), "visible": ""}).encode())
        before = len(machine.calls("nvmlDeviceGetFieldValues"))
        until(lambda: len(machine.calls("nvmlDeviceGetFieldValues")) > before + 300)
    assert end(first)["readings"] > 300


def test_a_name_that_another_user_holds_is_not_believed(machine, started):
    if os.geteuid():
        pytest.skip("needs to be root, to become another user")
    name = name_of(machine)
    child = os.fork()
    if not child:
        os.setuid(NOBODY)
        impostor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        impostor.bind(name)
        impostor.listen()
        while True:
            link, _ = impostor.accept()
            with suppress(OSError):
                link.send(json.dumps(FALSE).encode())
                link.recv(1)
    try:
        until(lambda: name.replace("\0", "@") in Path("/proc/net/unix").read_text())
        victim = started(machine.start("watch", uuid(0)))
        wait_for(victim, "first reading")
        assert end(victim)["last"]["gpu/sm_active_ratio"] == 0.875
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize(("user", "answer"), [(0, b'{"about"'), (NOBODY, b"")])
def test_readings_are_given_to_no_other_user(machine, started, user, answer):
    if os.geteuid():
        pytest.skip("needs to be root, to become another user")
    first = started(machine.start("watch", uuid(0)))
    wait_for(first, "first reading")
    name, (reading, writing) = name_of(machine), os.pipe()
    child = os.fork()
    if not child:
        os.setuid(user)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.connect(name)
            with suppress(OSError):
                link.send(json.dumps({"uuid": uuid(0), "visible": ""}).encode())
                os.write(writing, link.recv(8))
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading, "rb") as told:
        assert told.read() == answer
    end(first)


def test_a_driver_that_hangs_does_not_hang_the_run(machine, started):
    process = started(machine.start("watch", uuid(0), 0.2, "warn"))
    wait_for(process, "first reading")
    machine.set(-1, slow_us=600_000_000)
    tasks = Path(f"/proc/{process.pid}/task")
    until(lambda: any("nanosleep" in (task / "wchan").read_text() for task in tasks.iterdir()))
    out, said = process.communicate("\n")
    result = json.loads(out.splitlines()[-1])
    assert result["close_s"] > 1.5  # it had its chance
    assert "the thread that reads the GPU is left behind" in said


def test_without_nvml_the_thread_ends_and_says_nothing(machine, started):
    process = started(machine.start("watch", uuid(0), 0.2, "warn", LD_LIBRARY_PATH=""))
    wait_for(process, "started")
    out, said = process.communicate("\n")
    assert said == ""
    assert json.loads(out.splitlines()[-1])["about"]["gpm"].startswith("NVML: ")
