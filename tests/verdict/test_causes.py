"""Causes: what took the CPUs, and what is no cause at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.verdict.constructed import (
    IN_STEP,
    MS,
    TWO_CPUS,
    every,
    split,
    verdict_on,
)
from trainobs.verdict.facts import facts_from
from trainobs.verdict.sentence import notes, sentence
from trainobs.verdict.verdict import Cause, VerdictKind


@pytest.mark.parametrize(
    ("cause", "parts"),
    [
        (Cause.STORAGE, {"device": 85, "compute": 15}),
        (Cause.TRANSFORM, {"device": 15, "compute": 85}),
        (Cause.LOADER_SLEEP, {"sleep": 85, "handover": 15}),
        (Cause.STORAGE, {"device": 70, "compute": 30}),
        (None, {"device": 50, "compute": 50}),
        (None, {"device": 61, "compute": 39}),
        (None, {"device": 40, "compute": 20, "sleep": 20, "handover": 20}),
    ],
)
def test_a_cause_of_a_divided_wait_covers_most_of_it_and_has_no_rival(cause, parts):
    verdict = verdict_on(**split(**parts))
    assert (verdict.kind, verdict.cause) == (VerdictKind.LOADER, cause)


def test_what_collects_garbage_as_it_makes_batches_is_no_transform():
    made = split(compute=900) | {"loader__wait_ns": 900 * MS}  # of 999
    main = replace(TWO_CPUS, workers=0)
    found = verdict_on(main, **made, python__gc_ns=890 * MS)
    assert (found.kind, found.cause) == (VerdictKind.LOADER, Cause.GARBAGE)
    assert found.advice.change == {"gc": False}
    elsewhere = verdict_on(main, **made, python__gc_ns=90 * MS)  # in the step, maybe
    assert elsewhere.cause is Cause.TRANSFORM


def test_workers_that_start_with_each_epoch_are_no_hand_over():
    late = split(handover=100) | {"loader__start_stop_ns": 95 * MS}
    workers = {"loader__worker_start_stop_ns": 90 * MS}
    assert verdict_on(**late, **workers).cause is Cause.START
    live_on = replace(TWO_CPUS, has_persistent_workers=True)
    assert verdict_on(live_on, **late, **workers).cause is not Cause.START
    assert verdict_on(replace(TWO_CPUS, workers=0), **late).cause is not Cause.START


@pytest.mark.parametrize("live_on", [False, True])  # a loader that is gone has no workers
def test_workers_of_loaders_that_are_made_anew_are_told_as_such(live_on):
    late = split(handover=100) | {"loader__start_stop_ns": 95 * MS}
    made = replace(TWO_CPUS, has_new_loaders=True, has_persistent_workers=live_on)
    found = verdict_on(made, **late, loader__worker_start_stop_ns=90 * MS)
    assert found.cause is Cause.REMADE


def _loaders(*counts):
    return [
        {"workers": 2, "persistent_workers": True, "objects": objects, "passes": passes}
        for objects, passes in counts
    ]


@pytest.mark.parametrize(
    ("loaders", "made_anew"),
    [
        (_loaders((25, 25)), True),
        (_loaders((25, 25), (25, 25)), True),
        (_loaders(*[(1, 1)] * 5), True),  # of other lengths
        (_loaders((1, 25)), False),
        (_loaders((2, 50)), False),
        (_loaders((5, 50)), False),  # folds, of ten epochs each
        (_loaders((2, 2)), False),  # one for validation, say
        (_loaders((1, 1), (1, 1)), False),
        (_loaders((25, 25), (1, 25)), None),
        ([{"workers": 2, "persistent_workers": False}], None),  # of an older run
    ],
)
def test_loaders_are_made_anew_where_most_passes_have_one_of_their_own(loaders, made_anew):
    facts = facts_from({"settings": {"loader_workers": 2}, "loaders": loaders})
    assert facts.has_new_loaders is made_anew
    assert facts.has_new_workers == bool(made_anew or not loaders[0]["persistent_workers"])
    assert facts.may_keep_workers == (made_anew is True and len(loaders) < 5)


@pytest.mark.parametrize(
    ("workers", "told", "surely"),
    [
        (2, {"iterable": False, "shuffle": True, "told_of_passes": False}, True),
        (1, {"iterable": False, "shuffle": True, "told_of_passes": False}, True),
        (2, {"iterable": False, "shuffle": True}, False),  # of an older run
        # The first input may be a long one.
        (2, {"iterable": False, "told_of_passes": False, "shuffle": False}, False),
        (2, {"iterable": False, "told_of_passes": False, "shuffle": None}, False),
        (2, {"iterable": True, "shuffle": False}, False),  # a stream opens what it reads anew
        (2, {}, False),  # of an older run
        (2, {"iterable": False, "shuffle": True, "told_of_passes": True}, False),
    ],
)
def test_what_the_first_batch_of_a_worker_takes_is_for_its_being_new(workers, told, surely):
    one = {"workers": workers, "persistent_workers": False, **told}
    settings = {"loader_workers": workers}
    assert facts_from({"settings": settings, "loaders": [one]}).tells_opening is surely
    validation = {**one, "shuffle": False}
    assert facts_from({"settings": settings, "loaders": [validation, one]}).tells_opening is surely
    stream = {**one, "iterable": True}
    assert not facts_from({"settings": settings, "loaders": [one, stream]}).tells_opening


def test_a_start_is_the_workers_where_most_of_it_is_surely_theirs():
    """The rest is mostly what goes with them: queues, and threads."""
    late = split(handover=100) | {"loader__start_stop_ns": 90 * MS}
    assert verdict_on(**late, loader__worker_start_stop_ns=50 * MS).cause is Cause.START


@pytest.mark.parametrize("of_workers", [20 * MS, 40 * MS, np.nan])  # the rest: a sampler, say
def test_the_start_of_a_loader_is_blamed_on_workers_as_far_as_it_is_surely_theirs(of_workers):
    late = split(handover=100) | {"loader__start_stop_ns": 95 * MS}
    found = verdict_on(**late, loader__worker_start_stop_ns=of_workers)
    assert (found.kind, found.cause) == (VerdictKind.LOADER, None)


def test_what_the_training_thread_computes_before_workers_that_live_on_is_called_so():
    order = {"loader__start_stop_ns": 95 * MS, "loader__worker_start_stop_ns": 0.0}
    busy = split(handover=100) | order | {"sched__wait_offcpu_ns": 2 * MS}
    live_on = replace(TWO_CPUS, has_persistent_workers=True)
    assert verdict_on(live_on, **busy).cause is Cause.FETCH


@pytest.mark.parametrize(
    ("cause", "others", "computing", "throttled"),
    [
        (Cause.OTHERS, 0.8, 10, 0),
        (Cause.FULL, 0.05, 150, 0),
        (Cause.FULL, 0.2, 120, 0),
        (Cause.CPU, 0.05, 20, 0),  # they wait in turns, though CPUs are free
        (Cause.CPU, float("nan"), 150, 0),
        (Cause.QUOTA, 0.05, 10, 80),
        (Cause.CPU, 0.05, 10, 2),
    ],
)
def test_who_took_the_cpus_follows_from_who_ran(cause, others, computing, throttled):
    facts = replace(TWO_CPUS, quota=throttled > 0)
    verdict = verdict_on(
        facts,
        sched__main_runqueue_ns=60 * MS,
        sched__main_offcpu_ns=62 * MS,
        sched__others_cpu_ratio=others,
        sched__worker_cpu_ns=computing * MS,
        sched__thread_cpu_ns=0.0,
        sched__child_cpu_ns=0.0,
        sched__throttled_ns=throttled * MS,
    )
    assert (verdict.kind, verdict.cause) == (VerdictKind.COMPUTE, cause)
    assert verdict.advice is None  # there is nothing to replay


@pytest.mark.parametrize(("daemons", "cause"), [(80, Cause.CPU), (30, Cause.OTHERS)])
def test_others_are_not_blamed_for_what_the_run_has_let_go_of(daemons, cause):
    """The kernel knows who started them; `/proc` has them among all other processes."""
    held_up = {"sched__main_runqueue_ns": 60 * MS, "sched__main_offcpu_ns": 62 * MS}
    held_up |= {f"sched__{whose}_cpu_ns": 0.0 for whose in ("thread", "worker")}
    busy = held_up | {"sched__others_cpu_ratio": 0.8, "sched__child_cpu_ns": daemons * MS}
    assert verdict_on(**busy).cause is cause


def test_others_are_not_blamed_for_what_a_hidden_quota_may_have_done():
    held_up = {"sched__main_runqueue_ns": 60 * MS, "sched__main_offcpu_ns": 62 * MS}
    held_up |= {f"sched__{whose}_cpu_ns": 0.0 for whose in ("thread", "worker", "child")}
    hidden = replace(TWO_CPUS, quota_hidden=True)
    for facts, cause in ((TWO_CPUS, Cause.OTHERS), (hidden, Cause.CPU)):
        assert verdict_on(facts, **held_up, sched__others_cpu_ratio=0.5).cause is cause
    assert verdict_on(hidden, **held_up, sched__others_cpu_ratio=0.8).cause is Cause.OTHERS  # full


def test_a_quota_that_nobody_knew_is_told_by_what_it_throttled():
    """It was set, or its group entered, as the run went on: others had the CPUs meanwhile."""
    held_up = {"sched__main_runqueue_ns": 60 * MS, "sched__main_offcpu_ns": 62 * MS}
    taken = {"sched__others_cpu_ratio": 0.8}
    for facts in (TWO_CPUS, replace(TWO_CPUS, usable_cpus=0.4, quota=True, most_cpus=2.0)):
        verdict = verdict_on(facts, **held_up, **taken, sched__throttled_ns=40 * MS)
        assert verdict.cause is Cause.QUOTA
        verdict = verdict_on(facts, **held_up, **taken, sched__throttled_ns=15 * MS)
        assert verdict.cause is Cause.OTHERS, "all that it can get is no longer a quota's"
    crowd = {"sched__thread_runqueue_ns": 390 * MS, "sched__throttled_ns": 110 * MS}
    assert verdict_on(**held_up, **taken, **crowd).cause is Cause.QUOTA  # two CPUs throttle no more


def test_a_run_that_had_more_cpus_at_times_is_not_said_to_use_all_of_the_fewest():
    busy = {"sched__main_runqueue_ns": 60 * MS, "sched__main_offcpu_ns": 62 * MS}
    busy |= {f"sched__{whose}_cpu_ns": 0.0 for whose in ("thread", "worker", "child")}
    one = replace(TWO_CPUS, usable_cpus=0.4, all_cpus=1.0)
    assert verdict_on(one, **busy).cause is Cause.FULL
    assert verdict_on(replace(one, most_cpus=2.0), **busy).cause is Cause.CPU


def test_many_waiting_threads_of_the_process_are_too_many_and_a_few_are_not():
    held_up = {"sched__main_runqueue_ns": 60 * MS, "sched__others_cpu_ratio": 0.0}
    assert verdict_on(**held_up, sched__thread_runqueue_ns=410 * MS).cause is Cause.OWN_THREADS
    assert verdict_on(**held_up, sched__thread_runqueue_ns=350 * MS).cause is not Cause.OWN_THREADS
    workers = {"sched__worker_runqueue_ns": 900 * MS}  # which have batches to make
    assert verdict_on(**held_up, **workers).cause is not Cause.OWN_THREADS


def test_the_ranks_beside_this_one_may_use_their_part_of_the_machine():
    held_up = {"sched__main_runqueue_ns": 60 * MS, "ranks__wait_ns": 0.0}
    four = replace(TWO_CPUS, world_size=4, ranks_here=4)  # on eight CPUs
    fair = verdict_on(four, **held_up, sched__others_cpu_ratio=0.75)
    assert fair.cause is Cause.CPU
    assert verdict_on(four, **held_up, sched__others_cpu_ratio=0.95).cause is Cause.OTHERS


def test_a_rank_uses_all_that_it_can_get_only_where_nobody_else_takes_much():
    """What the other rank was entitled to and did not get either is in nobody's account."""
    two = replace(TWO_CPUS, world_size=2, ranks_here=2)
    starved = {"sched__main_runqueue_ns": 60 * MS, "sched__thread_runqueue_ns": 150 * MS}
    starved |= {"sched__main_offcpu_ns": 60 * MS, "ranks__wait_ns": 0.0}
    starved |= {f"sched__{whose}_cpu_ns": 0.0 for whose in ("thread", "worker", "child")}
    assert verdict_on(two, **starved, sched__others_cpu_ratio=0.89).cause is Cause.CPU


def test_a_first_read_is_storage_and_a_page_that_comes_back_is_memory():
    asleep = IN_STEP | {"sched__work_iowait_ns": 60 * MS, "memory__major_fault_count": 900}
    unknown = verdict_on(**asleep)
    assert unknown.abstained_because == (
        "computation waited for a device, and nobody knows whether for want of memory"
    )
    none = {"memory__reclaim_ns": 0.0, "memory__main_reclaim_ns": 0.0}
    first = verdict_on(**asleep, **none, memory__refault_count=0.0)
    assert (first.kind, first.cause) == (VerdictKind.COMPUTE, Cause.STORAGE)
    others = verdict_on(**asleep, **none, memory__refault_count=900)
    assert others.abstained_because == unknown.abstained_because, "of another of its group, maybe"
    short = {"memory__reclaim_ns": 1 * MS, "memory__main_reclaim_ns": 1 * MS}
    again = verdict_on(**asleep, **short, memory__refault_count=900)
    assert (again.kind, again.cause) == (VerdictKind.MEMORY, Cause.FAULTS)


@pytest.mark.parametrize(
    ("synced", "of_checkpoints", "reads", "cause"),
    [
        (65, 0, 0.0, Cause.FSYNC),
        (65, 30, 0.0, Cause.STORAGE),
        (20, 0, 0.0, Cause.STORAGE),
        (65, 0, 1.0, Cause.STORAGE),  # somebody else's fsync, maybe
        (65, 0, float("nan"), Cause.STORAGE),
    ],
)
def test_a_step_that_slept_for_a_device_slept_in_fsync_if_nothing_was_read(
    synced, of_checkpoints, reads, cause
):
    asleep = IN_STEP | {"sched__work_iowait_ns": 60 * MS}
    none = {"memory__reclaim_ns": 0.0, "memory__main_reclaim_ns": 0.0}
    verdict = verdict_on(
        **asleep,
        **none,
        memory__refault_count=0.0,
        memory__major_fault_count=0.0,
        io__main_fsync_ns=synced * MS,
        io__checkpoint_fsync_ns=of_checkpoints * MS,
        block__read_count=reads,
    )
    assert (verdict.kind, verdict.cause) == (VerdictKind.COMPUTE, cause)


def test_what_workers_spend_on_memory_is_no_time_of_the_training_thread():
    freed = {"memory__reclaim_ns": 400 * MS}
    assert verdict_on(**freed, memory__main_reclaim_ns=0.0).kind is VerdictKind.COMPUTE
    assert verdict_on(**freed, memory__main_reclaim_ns=40 * MS).cause is Cause.RECLAIM


def test_a_wait_for_threads_that_do_nothing_is_sleep_and_for_those_that_compute_is_not():
    waits = IN_STEP | {"phase__forward_ns": 98 * MS}  # of it 61 for other threads
    idle = verdict_on(**waits, sched__thread_cpu_ns=1 * MS)
    assert (idle.kind, idle.cause, idle.when) == (VerdictKind.SLEEP, Cause.UNKNOWN, "")
    assert verdict_on(**waits, sched__thread_cpu_ns=70 * MS).kind is VerdictKind.COMPUTE


def test_a_wait_for_threads_in_few_steps_is_not_told_of_all():
    """As where a loop reports to its framework at the end of an epoch."""
    few = IN_STEP | {"sched__work_offcpu_ns": every(32, 2000 * MS), "sched__thread_cpu_ns": 1 * MS}
    verdict = verdict_on(**few | {"phase__forward_ns": every(32, 2010 * MS)})
    assert (verdict.kind, verdict.when) == (VerdictKind.SLEEP, "in about 1 step of 32")


def test_the_machine_s_pressure_alone_is_no_want_of_memory():
    assert verdict_on(pressure__memory_ns=70 * MS).kind is VerdictKind.COMPUTE


def test_sleep_that_nothing_explains_is_called_unknown_with_its_phase():
    asleep = IN_STEP | {"sched__forward_sleep_ns": 60 * MS, "phase__forward_ns": 98 * MS}
    verdict = verdict_on(**asleep)
    assert (verdict.kind, verdict.cause, verdict.where) == (
        VerdictKind.SLEEP,
        Cause.UNKNOWN,
        "forward",
    )
    assert sentence(verdict) == "asleep: 60 ms a step, 38 % of it, in forward; cause: not known"
    assert verdict.advice is None
    beside = verdict_on(**asleep, sched__child_cpu_ns=150 * MS)  # of 158
    assert beside.cause is Cause.CHILDREN
    many = replace(TWO_CPUS, all_cpus=8.0)  # of which seven were free while the step computed
    assert verdict_on(many, **asleep, sched__child_cpu_ns=150 * MS).cause is Cause.UNKNOWN
    assert verdict_on(**asleep, sched__child_cpu_ns=90 * MS).cause is Cause.UNKNOWN
    gpu = replace(TWO_CPUS, has_accelerator=True)  # for which it may wait asleep
    assert verdict_on(gpu, **asleep).kind is VerdictKind.COMPUTE


def test_sleep_of_a_training_that_was_stopped_has_that_cause():
    asleep = IN_STEP | {"sched__forward_sleep_ns": 60 * MS, "phase__forward_ns": 98 * MS}
    stopped = verdict_on(**asleep, sched__work_stopped_ns=40 * MS, sched__child_cpu_ns=150 * MS)
    assert sentence(stopped).endswith("cause: the process was stopped, by a signal or a debugger")
    shown = {row.metric: (row.value, row.share) for row in stopped.evidence}
    assert shown["sched/work_stopped_ns"] == (40 * MS, pytest.approx(40 / 160))
    assert verdict_on(**asleep, sched__work_stopped_ns=30 * MS).cause is Cause.UNKNOWN


def test_what_memory_once_held_is_told_to_be_read_again():
    waits = {**split(device=100), "block__read_bytes": 8e6, "cache__miss_bytes": 8e6}
    told = "half or more of what is read from storage may have been in memory before"
    for pages, is_told in ((1000, True), (900, False)):
        verdict = verdict_on(**waits, memory__refault_count=pages)
        assert verdict.may_be_read_again is is_told
        assert any(line.startswith(told) for line in notes(verdict)) is is_told
    computing = verdict_on(block__read_bytes=8e6, memory__refault_count=2000.0)
    assert not computing.may_be_read_again


@pytest.mark.parametrize(
    "brought",
    [
        {"cache__miss_bytes": 17e6},  # of a server, as by FUSE
        {"cache__miss_bytes": 0.0, "cache__fault_fill_bytes": 17e6},
        {"cache__miss_bytes": 0.0, "io__data_direct_read_bytes": 17e6},
        {},  # unknown, as of data that nobody named
    ],
)
def test_pages_of_other_files_are_not_those_that_the_loader_reads(brought):
    libraries = {"block__read_bytes": 5e5, "memory__refault_count": 100.0}
    assert not verdict_on(**split(device=100), **libraries, **brought).may_be_read_again


@pytest.mark.parametrize(
    ("gil_ms", "thread_cpu_ms", "cause"),
    [
        (90, 99, Cause.INTERPRETER),
        (90, 10, Cause.HANDOVER),  # nobody computed who could have held it
        (0, 99, Cause.HANDOVER),
    ],
)
def test_threads_that_hold_the_interpreter_s_lock_may_keep_the_loader_waiting(
    gil_ms, thread_cpu_ms, cause
):
    """The batch is made, other processes take a CPU, and a thread of the run computes in Python."""
    gil = {"python__gil_wait_ns": gil_ms * MS, "python__wait_gil_ns": gil_ms * MS}
    made = {"batch__made_compute_ns": 2 * MS, "sched__worker_cpu_ns": 99 * MS}
    late = split(handover=100) | gil | made
    late |= {"sched__thread_cpu_ns": thread_cpu_ms * MS, "sched__others_cpu_ratio": 0.5}
    late |= {"sched__wait_runqueue_ns": 3 * MS, "sched__main_runqueue_ns": 3 * MS}
    verdict = verdict_on(**late)
    assert (verdict.kind, verdict.cause) == (VerdictKind.LOADER, cause)
    if cause is Cause.INTERPRETER:
        assert verdict.advice.change == {"python_threads": 0}


@pytest.mark.parametrize(
    ("gil_ms", "thread_cpu_ms", "cause"),
    [
        (95, 120, Cause.INTERPRETER),
        (50, 120, None),  # for the half of its sleep
        (20, 120, Cause.LOADER_SLEEP),
        (95, 10, Cause.LOADER_SLEEP),  # nobody computed who could have held it
        (95, 190, Cause.HELPERS),  # they surely compute while it sleeps, maybe for the data set
    ],
)
def test_a_data_set_that_waits_for_the_interpreter_s_lock_sleeps_for_something_known(
    gil_ms, thread_cpu_ms, cause
):
    gil = {"python__gil_wait_ns": gil_ms * MS, "python__wait_gil_ns": gil_ms * MS}
    asleep = split(sleep=100) | {"batch__sleep_ns": 100 * MS}
    alone = replace(TWO_CPUS, workers=0, torch_threads=1)
    verdict = verdict_on(alone, **asleep, **gil, sched__thread_cpu_ns=thread_cpu_ms * MS)
    assert (verdict.kind, verdict.cause) == (VerdictKind.LOADER, cause)


def test_a_lock_that_nobody_held_while_computing_is_not_the_interpreter_s():
    waits = IN_STEP | {"python__gil_wait_ns": 60 * MS}
    assert verdict_on(**waits, sched__thread_cpu_ns=60 * MS).cause is Cause.INTERPRETER
    polled = verdict_on(**waits, sched__thread_cpu_ns=2 * MS)
    assert (polled.kind, polled.cause) == (VerdictKind.SLEEP, Cause.UNKNOWN)
