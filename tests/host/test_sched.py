"""Scheduler times against clocks that the kernel keeps apart from schedstat."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from tests.host.helpers import Child, become_worker, in_child, sampling, value

BUSY_NS = 600_000_000


def spin() -> int:
    """Wall less CPU time, ns, of a thread that always wants to run."""
    wall, cpu = time.monotonic_ns(), time.thread_time_ns()
    while time.monotonic_ns() - wall < BUSY_NS:
        pass
    return (time.monotonic_ns() - wall) - (time.thread_time_ns() - cpu)


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
            before = [value(sampler, name) for name in names]
            waited = spin()
            after = [value(sampler, name) for name in names]
            assert waited > BUSY_NS / 4
            for was, now in zip(before, after, strict=True):
                assert now - was == pytest.approx(waited, rel=0.05)

    on_one_cpu_with_hogs(body)


@pytest.mark.parametrize("thread", [False, True])
def test_run_queue_time_of_a_worker_and_of_its_threads(thread: bool) -> None:
    def in_thread() -> int:
        found: list[int] = []
        worker = threading.Thread(target=lambda: found.append(spin()))
        worker.start()
        worker.join()
        return found[0]

    def work() -> int:
        become_worker()
        time.sleep(0.05)  # for the observer to see the name
        return in_thread() if thread else spin()

    def body() -> None:
        with sampling() as sampler:
            child = Child(work)
            child.start()
            answer = threading.Thread(target=lambda: answers.append(child.answer()))
            answers: list[str] = []
            answer.start()
            while answer.is_alive():
                sampler.refresh()
                sampler.sample()
                time.sleep(0.02)
            waited = int(answers[0])
            child.end()  # what an ended thread waited for stays
            sampler.refresh()
            time.sleep(0.01)
            sampler.sample()
            assert waited > BUSY_NS / 4
            assert value(sampler, "sched/worker_runqueue_ns") == pytest.approx(waited, rel=0.25)

    on_one_cpu_with_hogs(body)


def test_sleep_is_off_cpu_and_not_on_the_run_queue() -> None:
    with sampling() as sampler:
        offcpu = value(sampler, "sched/main_offcpu_ns")
        runqueue = value(sampler, "sched/main_runqueue_ns")
        wall, cpu = time.monotonic_ns(), time.thread_time_ns()
        time.sleep(0.2)
        expected = (time.monotonic_ns() - wall) - (time.thread_time_ns() - cpu)
        offcpu = value(sampler, "sched/main_offcpu_ns") - offcpu
        assert expected >= 199_000_000
        assert offcpu == pytest.approx(expected, abs=5_000_000)
        assert value(sampler, "sched/main_runqueue_ns") - runqueue < expected / 2


def test_a_sleeping_worker_is_off_cpu_from_its_birth() -> None:
    with sampling() as sampler:
        born = time.monotonic_ns()
        child = Child(become_worker)
        child.run()
        time.sleep(0.2)
        sampler.refresh()
        offcpu = value(sampler, "sched/worker_offcpu_ns")
        lived = time.monotonic_ns() - born
        assert lived - 50_000_000 < offcpu < lived + 10_000_000  # a tick is 10 ms
        child.end()
        for _ in range(2):
            sampler.refresh()
            time.sleep(0.02)
        assert value(sampler, "sched/worker_offcpu_ns") < offcpu + 50_000_000


def test_training_may_move_to_another_thread() -> None:
    with sampling() as sampler:
        time.sleep(0.05)
        first = value(sampler, "sched/main_offcpu_ns")
        values: list[int] = []

        def elsewhere() -> None:
            values.append(value(sampler, "sched/main_offcpu_ns"))
            time.sleep(0.1)
            values.append(value(sampler, "sched/main_offcpu_ns"))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert first <= values[0] < first + 50_000_000
        assert 99_000_000 < values[1] - values[0] < 200_000_000
