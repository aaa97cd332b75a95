"""CPU time that others took: exact on a made-up /proc, and roughly against a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from trainobs.host import others
from trainobs.host.others import OthersCpu

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A /proc with three CPUs, of which this process may use two, and a clock."""
    now = SimpleNamespace(ns=10**12, own_s=5.0)
    monkeypatch.setattr(others.time, "monotonic_ns", lambda: now.ns)
    monkeypatch.setattr(others.os, "sched_getaffinity", lambda _: {0, 2})
    usage = SimpleNamespace(ru_utime=0.0, ru_stime=0.0)
    own = {
        others.resource.RUSAGE_SELF: lambda: SimpleNamespace(ru_utime=now.own_s, ru_stime=0.0),
        others.resource.RUSAGE_CHILDREN: lambda: usage,
    }
    monkeypatch.setattr(others.resource, "getrusage", lambda who: own[who]())

    (tmp_path / "self").symlink_to(str(os.getpid()))

    def write(busy_s: tuple[float, float, float], child_s: float | None = None) -> None:
        lines = ["cpu  1 2 3 4 5 6 7 8 9 10"]
        for cpu, seconds in enumerate(busy_s):
            user, steal = int(seconds / TICK_S) - 2, 2
            lines.append(f"cpu{cpu} {user} 0 0 {10**6 + cpu} 777 0 0 {steal} 0 0")
        (tmp_path / "stat").write_text("\n".join([*lines, "intr 5 0 0", "ctxt 9"]))
        if child_s is not None:
            (tmp_path / "77").mkdir(exist_ok=True)
            ticks = [int(child_s / TICK_S) - 3, 1, 1, 1]
            fields = ["S", os.getpid(), *[0] * 9, *ticks, *[0] * 10]
            (tmp_path / "77" / "stat").write_text(f"77 (a) b) {' '.join(map(str, fields))}")

    def pass_s(seconds: float) -> None:
        now.ns += int(seconds * 1e9)

    return SimpleNamespace(now=now, write=write, pass_s=pass_s, proc=tmp_path)


def test_the_share_is_of_the_cpus_this_process_may_use_without_its_own_time(machine):
    machine.write((10, 10, 10))
    reader = OthersCpu(machine.proc)
    assert reader.reading() is None  # nothing to compare with
    machine.write((11.5, 99, 10.7))
    machine.now.own_s += 0.6
    machine.pass_s(2)
    at_ns, share = reader.reading()
    assert at_ns == machine.now.ns
    assert share == pytest.approx((1.5 + 0.7 - 0.6) / (2 * 2))


def test_descendants_are_no_others(machine):
    machine.write((10, 10, 10), child_s=3)
    reader = OthersCpu(machine.proc)
    reader.reading()
    machine.write((12, 10, 10), child_s=5)
    machine.pass_s(2)
    assert reader.reading()[1] == pytest.approx(0.0)


def test_it_is_read_once_a_second_at_most_and_never_below_zero(machine):
    machine.write((10, 10, 10))
    reader = OthersCpu(machine.proc)
    reader.reading()
    machine.pass_s(0.9)
    assert reader.reading() is None
    machine.now.own_s += 9
    machine.pass_s(0.2)
    assert reader.reading()[1] == 0.0


_ORPHAN = "import os; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True)\n"


def test_readings_of_different_cpus_are_not_compared(machine, monkeypatch):
    machine.write((10, 10, 10))
    reader = OthersCpu(machine.proc)
    reader.reading()
    monkeypatch.setattr(others.os, "sched_getaffinity", lambda _: {0, 1, 2})
    machine.pass_s(2)
    assert reader.reading() is None
    machine.write((11, 11, 12))
    machine.pass_s(2)
    assert reader.reading()[1] == pytest.approx(4 / 6)


def test_a_real_process_outside_the_tree_is_seen():
    script = _ORPHAN + "while True: pass"
    parent = subprocess.Popen([sys.executable, "-S", "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout
    hog = int(parent.stdout.readline())
    try:
        parent.wait()
        reader = OthersCpu()
        reader.reading()
        time.sleep(1.5)
        before = time.process_time()
        reading = reader.reading()
        assert reading
        # One busy process has at least a third of a CPU, whatever else runs.
        assert reading[1] > 0.33 / len(os.sched_getaffinity(0))
        assert time.process_time() - before < 0.05
    finally:
        os.kill(hog, signal.SIGKILL)
        parent.stdout.close()


_READS = """
import json, time
from trainobs.host.others import OthersCpu
reader = OthersCpu()
reader.reading()
time.sleep(1.2)
print(json.dumps(reader.reading()[1]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces of processes")
def test_in_a_process_namespace_whose_proc_is_that_outside_of_it():
    hog = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        # There it is process 1, and process 1 of this /proc has all others below it.
        command = ["unshare", "--pid", "--fork", sys.executable, "-c", _READS]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert float(done.stdout) > 0.33 / len(os.sched_getaffinity(0))
    finally:
        hog.kill()
        hog.wait()
