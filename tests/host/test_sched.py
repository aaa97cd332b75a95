"""Scheduler times against clocks that the kernel keeps apart from schedstat."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from tests.host.helpers import Child, become_worker, in_child, rested, sampling, value
from tests.stolen import stolen_ns

BUSY_NS = 600_000_000


def spin() -> int:
    """Wall less CPU time, ns, of a thread that always wants to run."""
    wall, cpu = time.monotonic_ns(), time.thread_time_ns()
    while time.monotonic_ns() - wall < BUSY_NS:
        pass
    return (time.monotonic_ns() - wall) - (time.thread_time_ns() - cpu)


def stolen() -> int:
    """What the hypervisor took from the CPU of `on_one_cpu_with_hogs` so far."""
    (cpu,) = os.sched_getaffinity(0)
    return stolen_ns(cpu)


def on_one_cpu_with_hogs(body: Callable[[], None]) -> None:
    def crowded() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        hogs = [Child(spin) for _ in range(3)]
        for hog in hogs:
            hog.start()
        body()
        for hog in hogs:
            hog.answer()
            hog.end()

    in_child(crowded)


def test_run_queue_time_of_the_training_thread() -> None:
    def body() -> None:
        with sampling() as sampler:
            names = ("sched/main_runqueue_ns", "sched/main_offcpu_ns")
            taken = stolen()
            before = [value(sampler, name) for name in names]
            waited = spin()
            after = [value(sampler, name) for name in names]
            taken = stolen() - taken
            assert waited > BUSY_NS / 4
            queued, off = (now - was for was, now in zip(before, after, strict=True))
            assert off == pytest.approx(waited, rel=0.05)
            # What the hypervisor takes from a CPU is no time in the queue for whom it had.
            assert 0.95 * waited - taken < queued < 1.05 * waited

    on_one_cpu_with_hogs(body)


@pytest.mark.parametrize("thread", [False, True])
def test_run_queue_time_of_a_worker_and_of_its_threads(thread: bool) -> None:
    def in_thread() -> int:
        """Of a thread that stays, so that it can be looked at when it is done."""
        found: list[int] = []
        done = threading.Event()

        def work() -> None:
            found.append(spin())
            done.set()
            threading.Event().wait()

        threading.Thread(target=work, daemon=True).start()
        done.wait()
        return found[0]

    def work() -> int:
        become_worker()
        return in_thread() if thread else spin()

    def body() -> None:
        with sampling() as sampler:
            taken = stolen()
            child = Child(work)
            waited = int(child.run())
            sampler.refresh()
            queued = value(rested(sampler), "sched/worker_runqueue_ns")
            taken = stolen() - taken
            assert waited > BUSY_NS / 4
            # It has also queued before and after.
            assert 0.95 * waited - taken < queued < 1.25 * waited
            child.end()  # what an ended thread waited for stays
            sampler.refresh()
            assert value(rested(sampler), "sched/worker_runqueue_ns") >= queued

    on_one_cpu_with_hogs(body)


def off_cpu_ns() -> int:
    """Wall less CPU time of this thread so far."""
    return time.monotonic_ns() - time.thread_time_ns()


def test_sleep_is_off_cpu_and_not_on_the_run_queue() -> None:
    with sampling() as sampler:
        outer = off_cpu_ns()
        offcpu = value(sampler, "sched/main_offcpu_ns")
        runqueue = value(sampler, "sched/main_runqueue_ns")
        inner = off_cpu_ns()
        time.sleep(0.2)
        inner = off_cpu_ns() - inner
        runqueue = value(sampler, "sched/main_runqueue_ns") - runqueue
        offcpu = value(sampler, "sched/main_offcpu_ns") - offcpu
        outer = off_cpu_ns() - outer
        assert 199_000_000 <= inner <= offcpu <= outer
        assert runqueue <= outer - 199_000_000


def test_what_other_threads_compute_is_told_from_what_the_training_thread_does() -> None:
    def work() -> None:
        began = time.thread_time_ns()
        while time.thread_time_ns() - began < BUSY_NS:
            pass

    with sampling() as sampler:
        before = value(sampler, "sched/thread_cpu_ns")
        other = threading.Thread(target=work)
        other.start()
        other.join()
        between = value(sampler, "sched/thread_cpu_ns")
        assert BUSY_NS <= between - before < 1.2 * BUSY_NS
        work()
        assert value(sampler, "sched/thread_cpu_ns") - between < 0.2 * BUSY_NS


def test_what_a_worker_computes_stays_when_it_has_ended() -> None:
    def work() -> int:
        become_worker()
        began = time.thread_time_ns()
        while time.thread_time_ns() - began < BUSY_NS:
            pass
        return time.thread_time_ns()

    with sampling() as sampler:
        child = Child(work)
        used = int(child.run())
        sampler.refresh()
        told = value(rested(sampler), "sched/worker_cpu_ns")
        assert 0.9 * used < told < 1.1 * used + 10_000_000  # what it did around that
        child.end()
        sampler.refresh()
        assert value(rested(sampler), "sched/worker_cpu_ns") >= told


def test_a_sleeping_worker_is_off_cpu_from_its_birth() -> None:
    with sampling() as sampler:
        unborn = time.monotonic_ns()
        child = Child(become_worker)
        born = time.monotonic_ns()
        child.run()
        time.sleep(0.2)
        sampler.refresh()
        rested(sampler)
        least = time.monotonic_ns() - born
        offcpu = value(sampler, "sched/worker_offcpu_ns")
        most = time.monotonic_ns() - unborn
        assert least - 50_000_000 < offcpu < most + 10_000_000  # its CPU time; a tick is 10 ms
        child.end()
        for _ in range(2):
            sampler.refresh()
            rested(sampler)
        assert value(sampler, "sched/worker_offcpu_ns") < offcpu + 50_000_000


def test_training_may_move_to_another_thread() -> None:
    with sampling() as sampler:
        time.sleep(0.05)
        first = value(sampler, "sched/main_offcpu_ns")
        values: list[int] = []
        around: list[int] = []

        def elsewhere() -> None:
            begin = off_cpu_ns()
            values.append(value(sampler, "sched/main_offcpu_ns"))
            time.sleep(0.1)
            values.append(value(sampler, "sched/main_offcpu_ns"))
            around.append(off_cpu_ns() - begin)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert first <= values[0] <= first + around[0]
        assert 99_000_000 < values[1] - values[0] <= around[0]
