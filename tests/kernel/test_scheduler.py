"""Time off the CPU and in the run queue, against clocks and /proc/thread-self/schedstat."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import freezer
from tests.kernel.ground_truth import MIB, write_file
from tests.kernel.jobs.batches import read_directly
from tests.kernel.observed import ObservedKernel
from tests.kernel.processes import fork, join
from tests.stolen import stolen_ns
from trainobs.core.abi import RING, Op, Role

pytestmark = pytest.mark.needs_bpf

MAIN = Role.MAIN
SLEEP_S = 0.2
BUSY_S = 0.5
NAPS, NAP_S = 50, 0.002
FIRST_S = 0.02
FREEZES, FROZEN_S = 20, 0.03
CROWD = 20
ORPHANS = "for i in $(seq 30); do (sleep 0.01 &); done"
"""For these the first process of the machine runs, which may be hidden from tracing."""


class Times(NamedTuple):
    """Nanoseconds and switches of this thread: what is true, and what the probes say."""

    off: int
    queued: int
    switches: int
    seen_off: int
    seen_queued: int
    seen_iowait: int
    seen_switches: int
    seen_waits: int

    def since(self, before: Times) -> Times:
        return Times(*(now - then for now, then in zip(self, before, strict=True)))


@pytest.fixture
def hogs() -> Iterator[None]:
    """More busy processes than this machine has CPUs to spare."""
    pids = [fork(lambda: burn(60.0)) for _ in range(4)]
    yield
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def burn(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pass


def times(observed: ObservedKernel) -> Times:
    """All clocks at one moment: no switch lies between the first and the last."""
    while True:
        before = switches()
        off = time.monotonic_ns() - time.thread_time_ns()
        queued = queued_ns()
        row = observed.kernel.rows[observed.clock.serial % RING][..., MAIN]
        seen = row["ns"].sum(axis=-1)
        found = Times(
            off,
            queued,
            before,
            int(seen[Op.OFFCPU]),
            int(seen[Op.RUNQUEUE]),
            int(row["wait_ns"][Op.OFFCPU].sum()),
            int(row["count"][Op.OFFCPU].sum()),
            int(row["count"][Op.RUNQUEUE].sum()),
        )
        if switches() == before:
            return found


def queued_ns() -> int:
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def switches() -> int:
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_nvcsw + usage.ru_nivcsw


def measured(observed: ObservedKernel, work: Callable[[], object]) -> Times:
    """Times of `work`, repeated if the kernel kept a switch or a wake-up from everybody.

    Seen in a virtual machine whose own init process is hidden from tracing: nothing that happens
    while it runs is traced, by ftrace neither, and so not who is woken then, or comes after it.
    """
    found: list[Times] = []

    def timed() -> None:
        before = times(observed)
        work()
        found.append(times(observed).since(before))

    for _ in range(8):
        counted = observed.during(timed)
        assert counted.ns(Op.OFFCPU, role=MAIN) >= found[-1].seen_off
        if found[-1].seen_switches == found[-1].seen_waits == found[-1].switches:
            return found[-1]
    pytest.fail(f"switches or wake-ups are missing each time: {found}")


def test_a_sleep_is_time_off_the_cpu(observed: ObservedKernel) -> None:
    got = measured(observed, lambda: time.sleep(SLEEP_S))
    assert got.off >= SLEEP_S * 0.99e9
    assert got.seen_off == pytest.approx(got.off, rel=0.01)
    assert got.seen_queued < got.seen_off
    assert got.seen_iowait == 0


def test_to_open_a_pipe_that_nobody_writes_yet_is_no_wait_for_storage(
    observed: ObservedKernel, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write_late() -> None:
        time.sleep(SLEEP_S)
        os.close(os.open(pipe, os.O_WRONLY))

    writer = threading.Thread(target=write_late)
    writer.start()
    counted = observed.during(lambda: os.close(os.open(pipe, os.O_RDONLY)))
    writer.join()
    assert counted.ns(Op.OFFCPU, role=MAIN) > 0.8 * SLEEP_S * 1e9
    assert counted.wait_ns(Op.OFFCPU, role=MAIN) == 0


def cut_again_and_again(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    while True:
        os.ftruncate(descriptor, 0)


def test_who_is_frozen_behind_a_call_does_not_sleep_for_what_it_asked_for(
    observed: ObservedKernel, place: Path
) -> None:
    with freezer.group() as group:
        child = fork(lambda: cut_again_and_again(place / "some"))
        (group / "cgroup.procs").write_text(str(child))

        def freeze() -> None:
            for _ in range(FREEZES):
                with freezer.frozen(group):
                    time.sleep(FROZEN_S)
                time.sleep(0.002)  # it goes on

        got = observed.during(freeze)
    os.waitpid(child, 0)
    assert got.ns(Op.OFFCPU, role=Role.CHILD) > 0.8 * FREEZES * FROZEN_S * 1e9
    assert got.wait_ns(Op.OFFCPU, role=Role.CHILD) < FROZEN_S * 1e9


def test_a_crowd_makes_the_training_thread_queue(observed: ObservedKernel, hogs: None) -> None:
    got = measured(observed, lambda: burn(BUSY_S))
    assert got.queued > 0.1 * BUSY_S * 1e9  # or nothing was tested
    assert got.seen_queued == pytest.approx(got.queued, rel=0.01)
    # It never sleeps. `off` is no truth here: it holds what the hypervisor took from this CPU.
    assert got.seen_off == pytest.approx(got.queued, rel=0.01)
    assert got.seen_iowait == 0


def test_a_nap_in_a_crowd_queues_only_after_it_was_woken(
    observed: ObservedKernel, hogs: None
) -> None:
    def naps() -> None:
        for _ in range(NAPS):
            time.sleep(NAP_S)

    got = measured(observed, naps)
    # The scheduler reads its clock before it chooses the next task, the probe some 5 us later.
    assert got.seen_queued == pytest.approx(got.queued, abs=got.switches * 20_000)
    slept, most = got.seen_off - got.seen_queued, got.off - got.queued
    assert NAPS * NAP_S * 1e9 <= slept <= most + got.switches * 20_000


def test_a_reader_in_a_crowd_sleeps_for_the_device_until_it_is_woken(
    observed: ObservedKernel, hogs: None, tmp_path: Path
) -> None:
    path = write_file(Path("/var/tmp") / f"{tmp_path.name}.bin", MIB)
    try:
        got = measured(observed, lambda: read_directly(path))
    finally:
        path.unlink()
    assert got.seen_queued > 0.1 * got.seen_off  # or nothing was tested
    assert 0 < got.seen_iowait <= got.seen_off - got.seen_queued


def test_a_child_queues_before_its_first_instruction(observed: ObservedKernel) -> None:
    told, tell = os.pipe()

    def start_and_keep_the_cpu() -> None:
        cpus, mine = os.sched_getaffinity(0), os.sched_getscheduler(0)
        first = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setaffinity(0, {min(cpus)})
        os.sched_setscheduler(0, first, os.sched_param(1))
        try:
            child = fork(lambda: os.write(tell, str(queued_ns()).encode()))
            burn(FIRST_S)
        finally:
            os.sched_setscheduler(0, mine, os.sched_param(0))
            os.sched_setaffinity(0, cpus)
        join(child)

    got = observed.during(start_and_keep_the_cpu)
    queued = int(os.read(told, 100))
    os.close(told)
    os.close(tell)
    assert queued > 0.5e9 * FIRST_S  # or nothing was tested
    seen = got.ns(Op.RUNQUEUE, role=Role.CHILD)
    assert 0.99 * queued <= seen <= got.ns(Op.OFFCPU, role=Role.CHILD)


def test_the_queueing_of_others_is_theirs(observed: ObservedKernel, hogs: None) -> None:
    got = observed.during(lambda: time.sleep(SLEEP_S))
    spare = SLEEP_S * 1e9 * (4 - (os.cpu_count() or 1))
    assert got.ns(Op.RUNQUEUE, role=Role.CHILD) > 0.5 * spare
    assert got.ns(Op.RUNQUEUE, role=MAIN) < 0.5 * SLEEP_S * 1e9
    assert got.count(Op.RUNQUEUE, role=Role.WORKER) == 0


def test_a_crowd_has_no_more_cpu_time_than_there_is(observed: ObservedKernel) -> None:
    """Where the kernel does not tell of each switch: one untold has counted the wait before it."""

    def crowd() -> None:
        pids = [fork(lambda: burn(BUSY_S)) for _ in range(CROWD)]
        subprocess.run(["sh", "-c", ORPHANS], check=True)
        for pid in pids:
            join(pid)

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    stolen = stolen_ns()
    got = observed.during(crowd)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    truth = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e9
    seen = got.ns(Op.ONCPU, role=Role.CHILD)
    assert 0.8 * truth < seen < 1.1 * truth + stolen_ns() - stolen
