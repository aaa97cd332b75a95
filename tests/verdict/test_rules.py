"""The rules, on records in which the answer is known because it was put there."""

from __future__ import annotations

import json
from dataclasses import replace
from math import nan

import pytest

from tests.verdict.constructed import MS, STEPS, TWO_CPUS, columns, every, verdict_on
from trainobs.verdict.blocks import STEP, Blocks
from trainobs.verdict.rules import judge
from trainobs.verdict.sentence import lines, sentence
from trainobs.verdict.verdict import Cause, Facts, VerdictKind, facts_from

WAITING = {"loader__wait_ns": 100 * MS}  # of 199: the step computes for 98 more
SPLIT = ("device", "cpu_wait", "compute", "sleep", "handover")


def split(**ms: float) -> dict[str, float]:
    return WAITING | {f"loader__{part}_ns": ms.get(part, 0.0) * MS for part in SPLIT}


def test_a_step_that_computes_is_compute_bound_and_needs_no_advice():
    verdict = verdict_on()
    assert (verdict.kind, verdict.cause, verdict.advice) == (VerdictKind.COMPUTE, None, None)
    assert verdict.share == pytest.approx(0.96)
    assert verdict.ns_per_step == pytest.approx(96 * MS)
    assert verdict.step_ns == pytest.approx(100 * MS)
    assert "sched/main_iowait_ns" not in {one.metric for one in verdict.evidence}  # there is none


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        (VerdictKind.LOADER, {"loader__wait_ns": 30 * MS}),
        (VerdictKind.COPY, {"phase__transfer_ns": 30 * MS}),
        (VerdictKind.CHECKPOINT, {"phase__checkpoint_ns": 30 * MS}),
        (VerdictKind.CHECKPOINT, {"phase__checkpoint_ns": every(16, 640 * MS)}),
        (VerdictKind.MEMORY, {"memory__reclaim_ns": 30 * MS}),
        (VerdictKind.MIXED, {"loader__wait_ns": 40 * MS, "phase__transfer_ns": 40 * MS}),
        (VerdictKind.MIXED, {"loader__wait_ns": 18 * MS, "phase__transfer_ns": 18 * MS}),
        (VerdictKind.LOADER, {"loader__wait_ns": 90 * MS, "phase__transfer_ns": 25 * MS}),
    ],
)
def test_the_largest_cost_beside_computation_is_named(kind, changed):
    assert verdict_on(**changed).kind is kind


@pytest.mark.parametrize("phase", ["loader__wait_ns", "phase__transfer_ns", "phase__checkpoint_ns"])
def test_a_cost_below_a_fifth_bounds_nothing(phase):
    # 98 ms are left of the step, and of these 99 if loader or transfer is replaced.
    assert verdict_on(**{phase: 22 * MS}).kind is VerdictKind.COMPUTE
    assert verdict_on(**{phase: 27 * MS}).kind is not VerdictKind.COMPUTE


def test_a_single_spike_decides_nothing_and_is_told():
    verdict = verdict_on(loader__wait_ns=[5000 * MS] + [1 * MS] * (STEPS - 1))
    assert verdict.kind is VerdictKind.COMPUTE
    assert verdict.uneven == pytest.approx(4999 / (4999 + 100 * STEPS))
    assert "44 % of the time went into a few slow steps, left out here" in lines(verdict)


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("steps", [30, 64, 500])
def test_a_wait_once_a_round_of_workers_is_a_wait(workers, steps):
    waits = every(workers, workers * 60 * MS, steps)
    verdict = verdict_on(loader__wait_ns=waits, steps=steps)
    assert verdict.kind is VerdictKind.LOADER
    assert verdict.ns_per_step == pytest.approx(60 * MS, rel=0.35)


@pytest.mark.parametrize(
    ("cause", "parts"),
    [
        (Cause.STORAGE, {"device": 85, "compute": 15}),
        (Cause.TRANSFORM, {"device": 15, "compute": 85}),
        (Cause.HANDOVER, {"handover": 100}),
        (Cause.SLEEP, {"sleep": 85, "handover": 15}),
        (Cause.LOADER_CPU, {"cpu_wait": 50, "compute": 40, "device": 10}),
        (None, {"device": 50, "compute": 50}),
        (None, {"device": 79, "compute": 21}),
    ],
)
def test_a_cause_of_a_divided_wait_needs_four_fifths_of_it(cause, parts):
    verdict = verdict_on(**split(**parts))
    assert (verdict.kind, verdict.cause) == (VerdictKind.LOADER, cause)


def test_a_record_of_an_older_version_does_not_tell_sleep_from_the_hand_over():
    verdict = verdict_on(**split(handover=100) | {"loader__sleep_ns": nan})
    assert (verdict.kind, verdict.cause) == (VerdictKind.LOADER, None)


def test_where_the_wait_is_not_divided_the_device_is_seen_by_the_scheduler():
    step = 199 * MS
    verdict = verdict_on(**WAITING, sched__worker_iowait_ns=2 * step * 0.9)
    assert verdict.cause is Cause.STORAGE
    assert verdict_on(**WAITING, sched__worker_iowait_ns=2 * step * 0.7).cause is None
    unknown = replace(TWO_CPUS, workers=None)
    assert verdict_on(unknown, **WAITING, sched__worker_iowait_ns=2 * step * 0.9).cause is None


def test_without_workers_the_training_thread_tells():
    alone = replace(TWO_CPUS, workers=0)
    assert verdict_on(alone, **WAITING).cause is Cause.TRANSFORM
    asleep = {"sched__main_iowait_ns": 90 * MS, "sched__main_offcpu_ns": 92 * MS}
    assert verdict_on(alone, **WAITING, **asleep).cause is Cause.STORAGE
    assert verdict_on(alone, **WAITING, sched__main_offcpu_ns=50 * MS).cause is None


@pytest.mark.parametrize(
    ("cause", "main", "thread", "others"),
    [
        (Cause.OWN_THREADS, 60, 1400, 0.3),  # 15 threads wait on average, for 2 CPUs
        (Cause.OWN_THREADS, 100, 100, 0.9),  # as many as there are CPUs
        (Cause.OTHERS, 60, 40, 0.8),
        (Cause.OWN_THREADS, 50, 50, 0.05),  # nobody else is there
        (Cause.CPU, 60, 90, 0.4),  # both
        (Cause.CPU, 60, 40, float("nan")),
    ],
)
def test_who_took_the_cpu_follows_from_who_waits_and_who_runs(cause, main, thread, others):
    verdict = verdict_on(
        sched__main_runqueue_ns=main * MS,
        sched__thread_runqueue_ns=thread * MS,
        sched__others_cpu_ratio=others,
    )
    assert (verdict.kind, verdict.cause) == (VerdictKind.COMPUTE, cause)


def test_the_ranks_beside_this_one_may_use_their_part_of_the_machine():
    held_up = {"sched__main_runqueue_ns": 60 * MS, "ranks__wait_ns": 0.0}
    four = replace(TWO_CPUS, world_size=4, ranks_here=4)  # on eight CPUs
    fair = verdict_on(four, **held_up, sched__others_cpu_ratio=0.75)
    assert fair.cause is Cause.OWN_THREADS
    assert verdict_on(four, **held_up, sched__others_cpu_ratio=0.95).cause is Cause.OTHERS


def test_garbage_collection_counts_by_its_sum_however_rare():
    verdict = verdict_on(python__gc_ns=every(32, 32 * 15 * MS))
    assert (verdict.kind, verdict.cause) == (VerdictKind.COMPUTE, Cause.GARBAGE)
    assert "gc.freeze()" in verdict.advice
    assert verdict_on(python__gc_ns=every(32, 32 * 7 * MS)).cause is None  # too little to ask


@pytest.mark.parametrize(
    "unknown", ["sched__main_runqueue_ns", "sched__main_iowait_ns", "python__gil_wait_ns"]
)
def test_a_cause_is_named_only_where_nothing_unknown_can_outweigh_it(unknown):
    garbage = {"python__gc_ns": every(32, 32 * 12 * MS), "sched__main_offcpu_ns": 1 * MS}
    assert verdict_on(**garbage, **{unknown: nan}).cause is Cause.GARBAGE
    asleep = garbage | {"sched__main_offcpu_ns": 40 * MS, unknown: nan}
    assert verdict_on(**asleep).cause is None
    assert verdict_on(**asleep | {"sched__main_offcpu_ns": nan}).cause is None


@pytest.mark.parametrize("unknown", ["main", "thread", "worker"])
def test_nobody_is_blamed_for_cpus_where_not_all_that_waits_is_known(unknown):
    short = {"sched__main_runqueue_ns": 60 * MS, "sched__others_cpu_ratio": 0.9}
    others = verdict_on(TWO_CPUS, **short)
    assert others.cause is Cause.OTHERS
    unsure = verdict_on(TWO_CPUS, **short | {f"sched__{unknown}_runqueue_ns": nan})
    assert unsure.cause in (None, Cause.CPU)
    assert unsure.advice is None


def test_waiting_for_the_interpreter_lock_is_named_where_it_is_what_computation_lost():
    verdict = verdict_on(python__gil_wait_ns=30 * MS)
    assert (verdict.kind, verdict.cause) == (VerdictKind.COMPUTE, Cause.INTERPRETER)
    assert "into a process" in verdict.advice
    assert "python/gil_wait_ns" in [row.metric for row in verdict.evidence]
    assert verdict_on(python__gil_wait_ns=6 * MS).cause is None  # too little to ask
    held_up = verdict_on(python__gil_wait_ns=30 * MS, sched__main_runqueue_ns=30 * MS)
    assert held_up.cause is None  # two causes share the time


def test_the_interpreter_lock_is_no_collective_where_these_were_not_measured():
    ranks = replace(TWO_CPUS, world_size=2)
    sleep = {"sched__main_offcpu_ns": 63 * MS, "net__sent_bytes": 1e6, "python__gil_wait_ns": 0.0}
    assert verdict_on(ranks, **sleep).kind is VerdictKind.COMMUNICATION
    explained = verdict_on(ranks, **{**sleep, "python__gil_wait_ns": 60 * MS})
    assert (explained.kind, explained.cause) == (VerdictKind.COMPUTE, Cause.INTERPRETER)


def test_collectives_take_their_time_out_of_computation():
    ranks = replace(TWO_CPUS, world_size=2)
    verdict = verdict_on(ranks, ranks__wait_ns=60 * MS)
    assert (verdict.kind, verdict.cause) == (VerdictKind.COMMUNICATION, None)
    assert verdict.share == pytest.approx(0.6)
    late = replace(ranks, others_wait_ns={1: 2 * MS})
    assert verdict_on(late, ranks__wait_ns=60 * MS).cause is Cause.STRAGGLER
    alike = replace(ranks, others_wait_ns={1: 50 * MS})
    assert verdict_on(alike, ranks__wait_ns=60 * MS).cause is None


def test_where_collectives_are_not_measured_sleep_tells_if_something_was_sent():
    ranks = replace(TWO_CPUS, world_size=2)
    asleep = {"sched__main_offcpu_ns": 60 * MS, "net__sent_bytes": 1e6, "python__gil_wait_ns": 0.0}
    assert verdict_on(ranks, **asleep).kind is VerdictKind.COMMUNICATION
    assert verdict_on(**asleep).kind is VerdictKind.COMPUTE  # alone: nobody to wait for
    for unknown in (
        {"net__sent_bytes": 0.0},
        {"sched__main_offcpu_ns": 10 * MS},
        {"python__gil_wait_ns": nan},  # it may have been that
    ):
        verdict = verdict_on(ranks, **asleep | unknown)
        assert verdict.abstained_because == "the time in collectives was not measured"
    assert verdict_on(ranks, **WAITING).kind is VerdictKind.LOADER  # whatever else there is
    in_loader = asleep | {"sched__main_offcpu_ns": 101 * MS}
    assert verdict_on(ranks, **WAITING, **in_loader).kind is VerdictKind.LOADER


def test_memory_needs_a_sign_of_its_own_beside_the_machine_s_pressure():
    pressure = {"pressure__memory_ns": 70 * MS}
    assert "short of memory" in verdict_on(**pressure).abstained_because
    assert verdict_on(**pressure, memory__reclaim_ns=0.0).kind is VerdictKind.COMPUTE
    assert verdict_on(**pressure, memory__major_fault_count=1).kind is VerdictKind.MEMORY
    few = {"memory__major_fault_count": 0.9, "memory__reclaim_ns": 0.0}
    assert verdict_on(**pressure, **few).kind is VerdictKind.COMPUTE
    faulting = {"sched__main_iowait_ns": 40 * MS, "memory__major_fault_count": 9}
    assert verdict_on(**faulting).cause is Cause.FAULTS
    assert verdict_on(memory__reclaim_ns=40 * MS).cause is Cause.RECLAIM


def test_fsync_of_a_checkpoint_is_a_cause():
    saving = {"phase__checkpoint_ns": every(8, 800 * MS)}
    assert verdict_on(**saving).cause is None
    assert verdict_on(**saving, io__fsync_ns=every(8, 700 * MS)).cause is Cause.FSYNC


MARKS = ("phase/forward_ns", "phase/backward_ns", "phase/optimizer_ns", "phase/transfer_ns")


def test_it_abstains_where_most_of_the_step_is_in_no_phase():
    verdict = verdict_on(without=MARKS, phase__other_ns=99 * MS)
    assert (verdict.ns_per_step, verdict.share, verdict.advice) == (None, None, None)
    assert verdict.kind is None
    assert verdict.abstained_because == (
        "99 % of the step is in no phase; not marked: transfer, forward, backward, optimizer"
    )
    assert verdict.evidence[0].metric == "phase/other_ns"


def test_a_wait_that_outweighs_all_that_was_not_marked_is_still_told():
    assert verdict_on(without=MARKS, **WAITING, phase__other_ns=90 * MS).kind is VerdictKind.LOADER
    assert verdict_on(without=MARKS, **WAITING, phase__other_ns=110 * MS).kind is None


def test_a_loader_that_nobody_times_is_no_loader_that_never_waits():
    verdict = verdict_on(without=("loader/wait_ns",), phase__other_ns=40 * MS)
    assert verdict.kind is None
    assert "not marked: loader" in verdict.abstained_because


def test_it_abstains_from_phases_that_do_not_add_up():
    record, wrong = Blocks(), columns()
    wrong[STEP] = wrong[STEP] * 1.03
    record.add(wrong)
    assert judge(record, TWO_CPUS).abstained_because == "the phases add up to 97 % of the step"


def test_it_abstains_from_a_handful_of_steps():
    assert verdict_on(steps=7).kind is None
    assert verdict_on(steps=8).kind is VerdictKind.COMPUTE


def test_validation_is_no_part_of_the_step():
    verdict = verdict_on(phase__validation_ns=every(64, 60_000 * MS), loader__wait_ns=50 * MS)
    assert verdict.kind is VerdictKind.LOADER
    assert verdict.step_ns == pytest.approx(149 * MS)


@pytest.mark.parametrize(
    ("workers", "cpus", "advice"),
    [
        (1, 4.0, "num_workers=4: there are 1 now, and CPUs for 4"),
        (4, 4.0, "make transforms cheaper"),
        (8, 4.0, "make transforms cheaper"),
        (1, 1.5, "make transforms cheaper"),
        (None, 4.0, "make transforms cheaper"),
    ],
)
def test_more_workers_are_never_advised_beyond_the_cpus_of_the_rank(workers, cpus, advice):
    facts = Facts(usable_cpus=cpus, workers=workers)
    assert verdict_on(facts, **split(compute=100)).advice.startswith(advice)


def test_more_workers_are_not_advised_where_others_have_the_cpus():
    facts = Facts(usable_cpus=4.0, workers=1)
    busy = {"sched__others_cpu_ratio": 0.6}
    assert verdict_on(facts, **split(compute=100), **busy).advice.startswith("num_workers=2")
    unknown = {"sched__others_cpu_ratio": float("nan")}
    advice = verdict_on(facts, **split(compute=100), **unknown).advice
    assert advice == "make transforms cheaper, or do them beforehand"
    assert verdict_on(facts, **split(compute=50, cpu_wait=50)).advice == advice


def test_want_of_a_cpu_in_a_collection_is_not_counted_twice():
    verdict = verdict_on(
        phase__forward_ns=838 * MS, python__gc_ns=750 * MS, sched__main_runqueue_ns=400 * MS
    )
    assert verdict.cause is Cause.GARBAGE  # 750 of 750 + 400 * (1 - 750 / 900)


def test_small_requests_are_the_advice_only_if_they_were_counted():
    slow = split(device=100)
    assert verdict_on(**slow).advice == "keep the data on a faster device, or in memory"
    small = {"block__read_count": 100, "block__read_bytes": 100 * 4096}
    assert "a request fetches 4.10 kB" in verdict_on(**slow, **small).advice
    for large in (100 << 16, 100 << 20):
        advice = verdict_on(**slow, **small | {"block__read_bytes": large}).advice
        assert advice == "keep the data on a faster device, or in memory"


def test_the_cpus_of_a_rank_are_shared_with_the_ranks_beside_it():
    host = {"usable_cpu_count": 8, "cpu_quota": 6.0, "cpu_count": 16}
    info = {"world_size": 4, "host": host, "settings": {"loader_workers": 3}}
    assert facts_from(info) == Facts(1.5, 3, 4, 4)
    assert facts_from(info | {"host": host | {"local_world_size": 2}}).usable_cpus == 3.0
    assert facts_from({}) == Facts()


def test_a_verdict_is_json_and_a_sentence():
    verdict = verdict_on(**split(device=100))
    data = json.loads(json.dumps(verdict.as_json(), allow_nan=False))
    assert (data["kind"], data["cause"]) == ("loader-bound", "the device")
    assert sentence(verdict) == "loader-bound: 100 ms a step, 50 % of it; cause: the device"
    assert data["evidence"][0] == {
        "metric": "loader/wait_ns",
        "value": pytest.approx(100 * MS),
        "unit": "ns",
        "share": pytest.approx(100 / 199),
    }


def test_computation_that_waits_for_a_device_is_short_of_memory_or_reads_by_itself():
    asleep = {"sched__main_iowait_ns": 40 * MS}
    assert verdict_on(**asleep).abstained_because == (
        "computation waited for a device, and nobody counted major faults"
    )
    assert verdict_on(sched__main_iowait_ns=1 * MS).kind is VerdictKind.COMPUTE
    reading = verdict_on(**asleep, memory__major_fault_count=0.1)
    assert (reading.kind, reading.cause) == (VerdictKind.COMPUTE, Cause.STORAGE)
    assert verdict_on(**asleep, memory__major_fault_count=5).kind is VerdictKind.MEMORY


def test_a_thread_that_lacks_its_cpu_for_longer_than_it_waits_for_data_is_not_loader_bound():
    waiting = {"loader__wait_ns": 40 * MS, "sched__main_offcpu_ns": 105 * MS}
    verdict = verdict_on(**waiting, sched__main_runqueue_ns=60 * MS, sched__others_cpu_ratio=0.8)
    assert (verdict.kind, verdict.cause) == (VerdictKind.COMPUTE, Cause.OTHERS)
    assert verdict_on(**waiting, sched__main_runqueue_ns=35 * MS).kind is VerdictKind.LOADER
