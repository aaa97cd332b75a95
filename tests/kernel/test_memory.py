"""Direct reclaim, by a real cgroup limit; and waiting for another thread."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import memory_group
from tests.kernel.ground_truth import sleep_timed
from tests.kernel.observed import Counts, ObservedKernel
from tests.kernel.processes import fork
from trainobs.core.abi import Op, Phase, Role

pytestmark = pytest.mark.needs_bpf

MIB = 1 << 20
LIMIT = 48 * MIB
WAIT_S = 0.2


@pytest.fixture
def tight() -> Iterator[Path]:
    """A cgroup in which `LIMIT` bytes may be used."""
    with memory_group.limited(LIMIT) as group:
        yield group


def read_in(group: Path | None, path: Path) -> Callable[[], None]:
    """Has a child read a file, which fills the page cache on account of its cgroup."""

    def child() -> None:
        if group:
            (group / "cgroup.procs").write_text(str(os.getpid()))
        with path.open("rb", buffering=0) as file:
            while file.read(MIB):
                pass

    def work() -> None:
        assert os.waitstatus_to_exitcode(os.waitpid(fork(child), 0)[1]) == 0

    return work


def test_a_child_at_the_limit_of_its_cgroup_frees_memory_itself(
    observed, place, tight, drop_caches
):
    path = place / "large"
    path.write_bytes(os.urandom(4 * LIMIT))
    drop_caches()
    begin = time.monotonic_ns()
    counts = observed.during(read_in(tight, path))
    took = time.monotonic_ns() - begin
    assert counts.count(Op.RECLAIM, role=Role.CHILD) > 0
    assert counts.bytes(Op.RECLAIM, role=Role.CHILD) >= 2 * LIMIT
    assert 0 < counts.ns(Op.RECLAIM) < took
    assert counts.metric("memory/reclaim_ns") == counts.ns(Op.RECLAIM)
    assert counts.metric("memory/reclaim_bytes") == counts.bytes(Op.RECLAIM)


def test_the_same_read_without_a_limit_frees_nothing(observed, place, drop_caches):
    path = place / "large"
    path.write_bytes(os.urandom(4 * LIMIT))
    drop_caches()
    counts = observed.during(read_in(None, path))
    assert counts.count(Op.RECLAIM) == 0


def wait_for_a_thread() -> None:
    """By a lock, as C code waits: without the interpreter's lock, and with no time limit."""
    lock = threading.Lock()
    lock.acquire()
    timer = threading.Timer(WAIT_S, lock.release)
    timer.start()
    lock.acquire()
    timer.join()


def awaited(counts: Counts) -> float:
    return counts.metric("sched/main_await_ns") / 1e9


@pytest.mark.parametrize("phase", [None, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER])
def test_waiting_for_another_thread_is_told_from_other_sleep(observed, phase):
    slept: list[float] = []
    counts = observed.during(sleep_timed(wait_for_a_thread, slept), phase)
    assert slept[0] > WAIT_S / 4  # or nothing was tested
    for_the_interpreter = counts.metric("python/gil_wait_ns") / 1e9  # for a thread that starts
    assert awaited(counts) == pytest.approx(slept[0] - for_the_interpreter, rel=0.1)


def name_me(name: bytes) -> None:
    """Name this thread, as gloo names its own."""
    ctypes.CDLL(None).prctl(15, ctypes.c_char_p(name), 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "is_gloo"),
    [(b"gloo_tcp_loop", True), (b"pt_gloo_runloop", True), (b"python", False), (b"gloo", False)],
)
def test_a_wait_that_a_thread_of_gloo_ends_is_one_for_other_ranks(observed, name, is_gloo):
    def work() -> None:
        lock = threading.Lock()
        lock.acquire()

        def release() -> None:
            name_me(name)
            time.sleep(WAIT_S)
            lock.release()

        thread = threading.Thread(target=release)
        thread.start()
        lock.acquire()
        thread.join()

    counts = observed.during(work)
    assert awaited(counts) > WAIT_S / 2
    for_ranks = counts.metric("ranks/wait_ns") / 1e9
    assert for_ranks == pytest.approx(awaited(counts) if is_gloo else 0, abs=WAIT_S / 10)


@pytest.mark.parametrize(
    "work",
    [
        lambda: time.sleep(WAIT_S),
        lambda: ctypes.CDLL(None).usleep(int(WAIT_S * 1e6)),
        lambda: os.waitpid(fork(lambda: time.sleep(WAIT_S)), 0),
    ],
    ids=["sleep", "usleep", "waitpid"],
)
def test_other_sleep_is_no_waiting_for_a_thread(observed: ObservedKernel, work):
    assert awaited(observed.during(work)) < WAIT_S / 10


def test_waiting_for_the_loader_is_none(observed):
    assert awaited(observed.during(wait_for_a_thread, Phase.LOADER)) < WAIT_S / 10


def test_another_threads_waiting_is_none(observed):
    """Nor does this one wait for its start or its end by a lock, which would be waiting."""
    begin, begins = os.pipe()
    thread = threading.Thread(target=lambda: (os.read(begin, 1), wait_for_a_thread()))
    thread.start()

    def work() -> None:
        os.write(begins, b"x")
        while thread.is_alive():
            time.sleep(0.01)

    counts = observed.during(work)
    thread.join()
    os.close(begin)
    os.close(begins)
    assert awaited(counts) < WAIT_S / 10
