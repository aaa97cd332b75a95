"""What a verdict goes by where `/proc` alone is read: times off the CPU, queues, CPU times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.verdict.constructed import MS, TWO_CPUS, WAITING, split, verdict_on
from trainobs.verdict.sentence import sentence
from trainobs.verdict.verdict import Cause, VerdictKind


def test_where_nobody_knows_the_sleep_of_phases_it_is_not_called_computation():
    """As `/proc` tells it: the time off the CPU, the queue, and what the other threads computed."""
    off = {"sched__main_offcpu_ns": 60 * MS}
    asleep = verdict_on(**off, sched__thread_cpu_ns=2 * MS)
    assert sentence(asleep) == "asleep: at least 52 ms a step, 52 % of it; cause: not known"
    for_threads = verdict_on(**off, sched__thread_cpu_ns=50 * MS)
    assert for_threads.abstained_because == (
        "for 58 % of the step the training thread is off the CPU, and nobody knows why"
    )
    for facts in (replace(TWO_CPUS, has_accelerator=True), TWO_CPUS):
        told = verdict_on(
            facts, sched__thread_cpu_ns=2 * MS, **off if facts is not TWO_CPUS else {}
        )
        assert told.kind is VerdictKind.COMPUTE
    unseen = verdict_on(without=("sched/main_offcpu_ns",))
    assert unseen.abstained_because == (
        "99 % of the step is no wait for data; how much of it is computation, nobody knows"
    )
    unmarked = verdict_on(without=("sched/main_offcpu_ns", "loader/wait_ns"))
    assert unmarked.abstained_because == "nobody knows how much of the step is computation"


def test_a_wait_that_may_be_the_taking_over_of_batches_is_no_bottleneck():
    """Below the eBPF level nobody knows what the training thread computed in it."""
    step = {"phase__forward_ns": 3 * MS, "phase__backward_ns": 1 * MS, "phase__other_ns": 0.0}
    step |= {"phase__optimizer_ns": 0.0, "phase__transfer_ns": 0.0, "sched__main_offcpu_ns": 1 * MS}
    assert verdict_on(**step, loader__wait_ns=1.4 * MS).kind is VerdictKind.COMPUTE
    waits = verdict_on(**step, loader__wait_ns=2 * MS)
    assert (waits.kind, waits.ns_per_step) == (VerdictKind.LOADER, 2 * MS)
    known = verdict_on(**step, loader__wait_ns=1.4 * MS, sched__wait_offcpu_ns=1.4 * MS)
    assert known.kind is VerdictKind.LOADER


def test_a_wait_beside_threads_that_compute_may_be_one_for_the_interpreter_lock():
    facts = replace(TWO_CPUS, torch_threads=1)
    waits = WAITING | {"sched__main_offcpu_ns": 100 * MS}
    assert verdict_on(facts, **waits, sched__thread_cpu_ns=20 * MS).kind is VerdictKind.LOADER
    beside = waits | {"sched__thread_cpu_ns": 90 * MS}
    assert "interpreter's lock" in (verdict_on(facts, **beside).abstained_because or "")
    torch_computes = replace(facts, torch_threads=2)
    assert verdict_on(torch_computes, **beside).kind is VerdictKind.LOADER
    assert verdict_on(facts, **beside, python__gil_wait_ns=0.0).kind is VerdictKind.LOADER
    assert verdict_on(facts, **beside | split(sleep=100)).kind is VerdictKind.LOADER


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        ({"worker_cpu": 300}, Cause.WORKERS),  # of 2 * 199
        ({"worker_cpu": 200}, None),
        ({"worker_cpu": 250, "worker_runqueue": 200}, None),
        ({"worker_runqueue": 300, "worker_cpu": 50}, Cause.CPU),
    ],
)
def test_without_ebpf_it_is_known_what_workers_compute_and_wait_for_cpus(told, cause):
    told = {f"sched__{name}_ns": ms * MS for name, ms in told.items()}
    unknown = {"sched__thread_runqueue_ns": np.nan, "sched__main_offcpu_ns": 99 * MS}
    verdict = verdict_on(**WAITING, **told, **unknown)
    assert (verdict.kind, verdict.cause) == (VerdictKind.LOADER, cause)


@pytest.mark.parametrize(("off", "cause"), [(5, Cause.FETCH), (60, None)])
def test_without_ebpf_it_is_known_what_the_training_thread_computes_at_least_in_a_wait(off, cause):
    verdict = verdict_on(**WAITING, sched__main_offcpu_ns=off * MS)
    assert (verdict.kind, verdict.cause) == (VerdictKind.LOADER, cause)


@pytest.mark.parametrize(
    ("wait", "off", "cause"),
    [(100, 5, Cause.TRANSFORM), (400, 390, Cause.FETCH_SLEEP), (100, 95, None), (400, 200, None)],
)
def test_without_ebpf_a_wait_of_the_thread_that_makes_batches_is_told_by_its_bounds(
    wait, off, cause
):
    facts = replace(TWO_CPUS, workers=0)
    verdict = verdict_on(facts, loader__wait_ns=wait * MS, sched__main_offcpu_ns=off * MS)
    assert (verdict.kind, verdict.cause) == (VerdictKind.LOADER, cause)


@pytest.mark.parametrize(
    ("threads", "beside", "cause"),
    [
        (1, {"thread": 390}, Cause.HELPERS),
        (1, {"child": 390}, Cause.HELPERS),
        (2, {"thread": 390}, Cause.FETCH_SLEEP),  # much of it may have been for the step
        (1, {"thread": 150}, Cause.FETCH_SLEEP),
        (None, {"thread": 390}, Cause.FETCH_SLEEP),
    ],
)
def test_who_makes_batches_in_another_thread_is_not_asleep(threads, beside, cause):
    """As in `prefetch_generator`: no worker, nobody marks a batch, and a thread computes."""
    facts = replace(TWO_CPUS, workers=0, torch_threads=threads, sees_switches=True)
    wait = {"loader__wait_ns": 400 * MS, "sched__main_offcpu_ns": 390 * MS}
    used = {f"sched__{who}_cpu_ns": ms * MS for who, ms in beside.items()}
    verdict = verdict_on(facts, **wait, **used, python__gil_wait_ns=0.0)
    assert (verdict.kind, verdict.cause) == (VerdictKind.LOADER, cause)
    assert "a thread" in Cause.FETCH_SLEEP.value


def test_without_ebpf_want_of_a_cpu_in_the_step_is_no_cause_of_a_wait():
    """Of the queue of the whole step, what the rest of the step may hold is not laid to it."""
    facts, off = replace(TWO_CPUS, workers=0), {"sched__main_offcpu_ns": 160 * MS}
    queued = {"sched__main_runqueue_ns": 80 * MS}
    assert verdict_on(facts, loader__wait_ns=100 * MS, **off, **queued).cause is None
    long = {"loader__wait_ns": 400 * MS, "sched__main_offcpu_ns": 480 * MS}
    assert verdict_on(facts, **long, sched__main_runqueue_ns=450 * MS).cause is Cause.CPU


def test_without_ebpf_held_up_is_what_held_up_longer_than_sleep_may_have():
    queued = {"sched__main_runqueue_ns": 30 * MS, "sched__thread_cpu_ns": 5 * MS}
    waited = verdict_on(**queued, sched__main_offcpu_ns=50 * MS)
    assert (waited.kind, waited.cause) == (VerdictKind.COMPUTE, Cause.CPU)
    assert sentence(waited).startswith("compute-bound: 30 ms a step, 30 % of it; cause: waiting")
    slept = verdict_on(**queued, sched__main_offcpu_ns=75 * MS)
    assert (slept.kind, slept.is_least) == (VerdictKind.SLEEP, True)


def test_a_thread_that_is_hardly_off_the_cpu_waits_for_no_interpreter_lock():
    facts = replace(TWO_CPUS, workers=0, torch_threads=2)  # torch's thread spins while it is called
    spins = {"sched__thread_cpu_ns": 190 * MS, "sched__main_offcpu_ns": 5 * MS}
    verdict = verdict_on(facts, **WAITING, **spins)
    assert (verdict.kind, verdict.cause) == (VerdictKind.LOADER, Cause.TRANSFORM)


def test_a_cpu_that_a_hypervisor_takes_is_no_sleep():
    """It is no want of a CPU to the scheduler, and no CPU time either."""
    taken = {"sched__main_offcpu_ns": 60 * MS, "sched__thread_cpu_ns": 0.0}
    told = verdict_on(**taken, sched__others_cpu_ratio=0.3)
    assert "is off the CPU, and nobody knows why" in (told.abstained_because or "")
    facts, waits = replace(TWO_CPUS, workers=0), {"loader__wait_ns": 400 * MS}
    off = waits | {"sched__main_offcpu_ns": 390 * MS}
    assert verdict_on(facts, **off).cause is Cause.FETCH_SLEEP
    assert verdict_on(facts, **off, sched__others_cpu_ratio=0.3).cause is None
