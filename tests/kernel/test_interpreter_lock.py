"""Sleep of the training thread for Python's interpreter lock, against clocks of both threads."""

from __future__ import annotations

import ctypes
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.kernel.ground_truth import queued_s, sleep_timed
from tests.kernel.observed import Counts, ObservedKernel
from tests.kernel.processes import A_DAY_AHEAD, run_job
from tests.kernel.runlog import RunTables
from tests.stolen import stolen_ns
from trainobs.core.abi import Phase

pytestmark = pytest.mark.needs_bpf

HELD_S = 0.3
NAP_S = 0.02


def keep_lock() -> None:
    """One call into C that does not let go of the lock, nor looks whether somebody wants it."""
    ctypes.PyDLL(None).usleep(int(HELD_S * 1e6))


def let_go_of_lock() -> None:
    """The same call, without the lock."""
    ctypes.CDLL(None).usleep(int(HELD_S * 1e6))


def hash_without_lock() -> None:
    """C code that computes, without the lock."""
    until = time.monotonic() + HELD_S
    data = bytes(8 << 20)
    while time.monotonic() < until:
        hashlib.sha256(data)


def compute() -> None:
    """Python code, which lets go of the lock each 5 ms if somebody wants it."""
    until = time.thread_time() + HELD_S
    while time.thread_time() < until:
        pass


class Beside:
    """Another thread, for whose start, turn and end nobody waits by a lock.

    Attributes:
        queued_s: how long it was ready without a CPU.
    """

    def __init__(self, does: Callable[[], None]) -> None:
        self._does = does
        self._turn = threading.Lock()
        self._turn.acquire()
        self._over = False
        self._thread = threading.Thread(target=self._run)
        self.queued_s = 0.0

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._thread.join()

    def begin(self) -> None:
        self._turn.release()

    def wait(self) -> int:
        """Nap until it is over; how often."""
        naps = 0
        while not self._over:
            nap()
            naps += 1
        return naps

    def cpu_s(self) -> float:
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))

    def _run(self) -> None:
        self._turn.acquire()
        before = queued_s()
        self._does()
        self.queued_s = queued_s() - before
        self._over = True


def nap() -> None:
    time.sleep(NAP_S)


def waited_s(counts: Counts) -> float:
    return counts.metric("python/gil_wait_ns") / 1e9


def awaited_s(counts: Counts) -> float:
    return counts.metric("sched/main_await_ns") / 1e9


@pytest.mark.parametrize("phase", [None, Phase.LOADER, Phase.FORWARD])
def test_a_call_that_keeps_the_lock_is_waited_for(observed: ObservedKernel, phase):
    """This thread naps meanwhile, which it does without the lock."""
    slept, naps = [], []
    with Beside(keep_lock) as other:

        def work() -> None:
            other.begin()
            naps.append(other.wait())

        counts = observed.during(sleep_timed(work, slept), phase)
    waited = waited_s(counts)
    assert waited > HELD_S / 2
    assert waited == pytest.approx(slept[0] - naps[0] * NAP_S, abs=NAP_S + 0.02)
    assert awaited_s(counts) < HELD_S / 10  # the two do not count the same time
    in_the_wait = counts.metric("python/gil_wait_ns") if phase is Phase.LOADER else 0
    assert counts.metric("python/wait_gil_ns") == in_the_wait


def test_threads_that_compute_in_turn_wait_for_each_other(observed: ObservedKernel):
    slept, queued, computed, taken = [], [], [], []

    def compute_on() -> None:
        while not computed:
            pass

    with Beside(compute_on) as other:

        def work() -> None:
            before = queued_s(), other.cpu_s(), stolen_ns()
            other.begin()
            compute()
            queued.append(queued_s() - before[0])
            computed.append(other.cpu_s() - before[1])
            taken.append((stolen_ns() - before[2]) / 1e9)

        waited = waited_s(observed.during(sleep_timed(work, slept)))
    assert computed[0] > HELD_S / 3  # or nothing was tested
    # While the other one computes, this one sleeps, or has just been woken to ask for the lock,
    # perhaps on a CPU that the hypervisor then takes.
    assert 0.9 * computed[0] - queued[0] - taken[0] - NAP_S < waited < slept[0] + NAP_S


@pytest.mark.parametrize("does", [let_go_of_lock, hash_without_lock], ids=["usleep", "sha256"])
def test_threads_without_the_lock_are_not_waited_for(observed: ObservedKernel, does):
    with Beside(does) as other:

        def work() -> None:
            other.begin()
            compute()

        waited = waited_s(observed.during(work))
    # Between two calls it has the lock, and may lose the CPU with it.
    assert waited < HELD_S / 10 + other.queued_s


@pytest.mark.parametrize("limit_s", [-1, 60.0])
def test_a_lock_of_the_program_is_another_one(observed: ObservedKernel, limit_s):
    """It is waited for by the same system call, without a time limit or with a longer one."""
    lock, slept = threading.Lock(), []
    lock.acquire()

    def release() -> None:
        time.sleep(HELD_S)
        lock.release()

    with Beside(release) as other:

        def work() -> None:
            other.begin()
            assert lock.acquire(timeout=limit_s)

        counts = observed.during(sleep_timed(work, slept))
    assert slept[0] > HELD_S / 2  # or nothing was tested
    assert waited_s(counts) < HELD_S / 10 + other.queued_s
    assert awaited_s(counts) == pytest.approx(slept[0] - waited_s(counts), rel=0.1)


def test_another_threads_wait_is_not_the_training_threads(observed: ObservedKernel):
    """This one hears without the lock that both are over, which then nobody has any more."""
    ours, theirs = socket.socketpair()

    def wait(kept: Callable[[], None]) -> None:
        theirs.recv(1)
        nap()
        kept()
        theirs.send(b"x")

    threads = [threading.Thread(target=wait, args=[does]) for does in (keep_lock, compute)]
    for thread in threads:
        thread.start()

    def work() -> None:
        ours.send(b"xx")
        assert ours.recv(2, socket.MSG_WAITALL) == b"xx"

    counts = observed.during(work)
    for thread in threads:
        thread.join()
    ours.close()
    theirs.close()
    assert waited_s(counts) < HELD_S / 10


@pytest.mark.parametrize("before", [(), A_DAY_AHEAD])
def test_a_wait_for_it_is_known_whatever_the_clock_of_the_process(
    tmp_path: Path, before: Sequence[str]
) -> None:
    run_job("held", before, run_dir=str(tmp_path / "run"), steps=5, held_s=0.1)
    waited = sum(row["python/gil_wait_ns"] for row in RunTables(tmp_path / "run").steps)
    assert waited > 5 * 0.08e9
