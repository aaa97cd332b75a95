"""What a loader slept for: a network, storage that others read, or what others computed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.verdict.constructed import IN_STEP, MS, TWO_CPUS, WAITING, split, verdict_on
from trainobs.verdict.verdict import Cause


def test_sleep_while_data_came_from_a_network_is_called_so():
    asleep = split(sleep=100)
    assert verdict_on(**asleep, batch__received_bytes=5e6).cause is Cause.NETWORK
    assert verdict_on(**asleep, batch__received_bytes=100.0).cause is Cause.LOADER_SLEEP


@pytest.mark.parametrize(
    ("reads", "cause"),
    [
        ({"io__data_read_ns": 100 * MS, "cache__read_stall_ratio": 0.9}, Cause.STORAGE_BESIDE),
        ({"io__data_read_ns": 100 * MS, "cache__read_stall_ratio": 0.1}, Cause.LOADER_SLEEP),
        ({"sched__worker_iowait_ns": 160 * MS}, Cause.STORAGE_BESIDE),
        ({"block__read_ns": 90 * MS}, Cause.LOADER_SLEEP),  # it may be read-ahead
        ({"sched__worker_iowait_ns": 160 * MS, "batch__received_bytes": 5e6}, Cause.LOADER_SLEEP),
        # What the makers of batches read themselves.
        ({"sched__worker_iowait_ns": 90 * MS, "batch__device_ns": 70 * MS}, Cause.LOADER_SLEEP),
    ],
)
def test_sleep_while_threads_waited_for_storage_is_called_so(reads, cause):
    assert verdict_on(**split(sleep=100), batch__sleep_ns=95 * MS, **reads).cause is cause


@pytest.mark.parametrize(
    ("beside", "cause"),
    [
        ({"thread_iowait": 90}, Cause.STORAGE_BESIDE),
        ({"thread_iowait": 30}, Cause.LOADER_SLEEP),
        ({"thread_iowait": 90, "read": 0}, Cause.LOADER_SLEEP),  # for what it writes
        ({"thread_iowait": 90, "fsync": 80, "main_fsync": 5}, Cause.LOADER_SLEEP),
    ],
)
def test_without_workers_threads_that_read_for_the_loader_are_no_known_readers(beside, cause):
    """Nobody knows that what they read is data: but that they waited for storage."""
    names = {
        "thread_iowait": "sched__thread_iowait_ns",
        "read": "block__read_ns",
        "fsync": "io__fsync_ns",
        "main_fsync": "io__main_fsync_ns",
    }
    told = {names[name]: ms * MS for name, ms in ({"read": 5} | beside).items()}
    facts = replace(TWO_CPUS, workers=0)
    verdict = verdict_on(facts, **split(sleep=100), batch__sleep_ns=95 * MS, **told)
    assert verdict.cause is cause
    undivided = WAITING | {"sched__main_offcpu_ns": 199 * MS, "sched__main_runqueue_ns": 0.0}
    found = verdict_on(replace(facts, sees_switches=True), **undivided, **told)
    assert found.cause is (cause if cause is Cause.STORAGE_BESIDE else Cause.FETCH_SLEEP)
    of_workers = verdict_on(**split(sleep=100), batch__sleep_ns=95 * MS, **told)
    assert of_workers.cause is Cause.LOADER_SLEEP, "these read for themselves"


WORKERS_ASLEEP = {**split(sleep=100), "batch__sleep_ns": 380 * MS}  # of 2 * 199


@pytest.mark.parametrize(("used", "cause"), [(330, Cause.HELPERS), (150, Cause.LOADER_SLEEP)])
def test_workers_that_sleep_while_what_they_started_computes_are_told_from_others(used, cause):
    asleep = {**WORKERS_ASLEEP, "sched__worker_cpu_ns": used * MS, "batch__compute_ns": 5 * MS}
    assert verdict_on(**asleep).cause is cause
    received = verdict_on(**asleep, batch__received_bytes=5e6)  # by a socket of the machine, say
    assert received.cause is (Cause.NETWORK if cause is Cause.LOADER_SLEEP else cause)


@pytest.mark.parametrize(
    ("threads", "beside", "cause"),
    [
        (1, {"child": 190}, Cause.HELPERS),
        (1, {"thread": 190}, Cause.HELPERS),
        (1, {"thread": 95, "child": 95}, Cause.HELPERS),
        (2, {"thread": 200, "child": 95}, Cause.HELPERS),  # 99 of them for the step, at most
        (1, {"child": 120}, Cause.LOADER_SLEEP),  # as it may have while the step computed
        (2, {"thread": 190}, Cause.LOADER_SLEEP),  # half of it for the step, maybe
        (None, {"thread": 190}, Cause.LOADER_SLEEP),
    ],
)
def test_a_training_thread_that_makes_batches_may_sleep_for_its_own(threads, beside, cause):
    facts = replace(TWO_CPUS, workers=0, torch_threads=threads)
    used = {f"sched__{who}_cpu_ns": ms * MS for who, ms in beside.items()}
    asleep = split(sleep=100) | {"batch__sleep_ns": 100 * MS}  # of 199
    verdict = verdict_on(facts, **asleep, **used)
    assert verdict.cause is cause
    shown = {row.metric for row in verdict.evidence}
    assert shown >= {name.replace("__", "/") for name in used} or cause is Cause.LOADER_SLEEP


def test_on_many_cpus_what_computed_may_have_done_so_while_nobody_slept():
    many = replace(TWO_CPUS, usable_cpus=8.0, all_cpus=8.0, workers=0, torch_threads=1)
    asleep = split(sleep=100) | {"batch__sleep_ns": 100 * MS}  # of 199
    pool = {"sched__thread_cpu_ns": 600 * MS}  # of six threads, say, in the 99 that are left
    assert verdict_on(many, **asleep, **pool).cause is Cause.LOADER_SLEEP
    unknown = replace(many, all_cpus=None)
    assert verdict_on(unknown, **asleep, **pool).cause is Cause.LOADER_SLEEP
    assert verdict_on(many, **asleep, sched__child_cpu_ns=760 * MS).cause is Cause.HELPERS


@pytest.mark.parametrize("cpus", [8.0, None])
def test_who_seems_to_sleep_longer_than_the_step_had_no_helpers_for_that(cpus):
    facts = replace(TWO_CPUS, usable_cpus=8.0, all_cpus=cpus, workers=0, torch_threads=1)
    asleep = split(sleep=198) | {"batch__sleep_ns": 300 * MS}  # of 199, with what began before it
    assert verdict_on(facts, **asleep, sched__child_cpu_ns=150 * MS).cause is Cause.LOADER_SLEEP


@pytest.mark.parametrize(
    ("stalled_ms", "high", "freed_ms", "read_ms", "explains"),
    [
        (120, 40, 1, 5, True),
        (120, 0, 1, 5, False),
        (120, 0.01, 1, 5, False),  # once in a hundred steps: for 2 s, at most
        (120, 40, 0, 5, False),  # another process of the group takes it
        (120, 40, math.nan, 5, False),
        (70, 40, 1, 5, False),
        (120, 40, 1, 60, False),
    ],
)
def test_a_wait_beyond_memory_high_is_called_so_and_more_memory_is_advised(
    stalled_ms, high, freed_ms, read_ms, explains
):
    """Wherever a worker sleeps; what was taken from memory and is read back is storage."""
    told = {"memory__stalled_ns": stalled_ms * MS, "memory__high_count": high}
    told["memory__reclaim_ns"] = freed_ms * MS
    made, late = split(sleep=90 - read_ms, device=read_ms), split(handover=90, device=read_ms)
    alone = replace(TWO_CPUS, workers=0)
    of_loader = [
        verdict_on(facts, **one, **told) for facts in (TWO_CPUS, alone) for one in (made, late)
    ]
    for verdict in of_loader:
        assert (verdict.cause is Cause.HIGH) == explains
        assert bool(verdict.advice and "memory" in verdict.advice.change) == explains
    in_step = {**IN_STEP, "sched__forward_sleep_ns": 60 * MS, "phase__forward_ns": 90 * MS}
    asleep = verdict_on(**in_step, **told)
    assert (asleep.cause is Cause.HIGH) == (high == 40 and freed_ms == 1 and stalled_ms == 120)
