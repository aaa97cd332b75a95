"""The rules, on steps in which the answer is known because it was put there."""

from __future__ import annotations

import json
from dataclasses import replace
from math import nan
from types import SimpleNamespace

import numpy as np
import pytest

from tests.verdict.constructed import (
    IN_STEP,
    MARKS,
    MS,
    STEPS,
    TWO_CPUS,
    WAITING,
    columns,
    every,
    split,
    verdict_on,
)
from trainobs.verdict import advice
from trainobs.verdict.facts import Facts, facts_from
from trainobs.verdict.metric_names import INPUTS, PHASES, STEP
from trainobs.verdict.rules import judge
from trainobs.verdict.sentence import lines, sentence
from trainobs.verdict.summed_steps import SummedSteps
from trainobs.verdict.verdict import Advice, Cause, VerdictKind


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
        (VerdictKind.MEMORY, {"memory__reclaim_ns": 30 * MS, "memory__main_reclaim_ns": 30 * MS}),
        (VerdictKind.MIXED, {"loader__wait_ns": 40 * MS, "phase__transfer_ns": 40 * MS}),
        (VerdictKind.VALIDATION, {"phase__validation_ns": every(16, 1600 * MS)}),
        (VerdictKind.COMPUTE, {"loader__wait_ns": 18 * MS, "phase__transfer_ns": 18 * MS}),
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


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("steps", [30, 64, 500])
def test_a_wait_once_a_round_of_workers_is_a_wait(workers, steps):
    waits = every(workers, workers * 60 * MS, steps)
    verdict = verdict_on(loader__wait_ns=waits, steps=steps)
    assert verdict.kind is VerdictKind.LOADER
    assert verdict.ns_per_step == pytest.approx(60 * MS, rel=0.35)


def test_a_record_of_an_older_version_does_not_tell_sleep_from_the_hand_over():
    verdict = verdict_on(**split(handover=100) | {"loader__sleep_ns": nan})
    assert (verdict.kind, verdict.cause) == (VerdictKind.LOADER, None)


def test_where_the_wait_is_not_divided_the_device_is_seen_by_the_scheduler():
    step, waits = 199 * MS, {**WAITING, "sched__main_offcpu_ns": 99 * MS}
    verdict = verdict_on(**waits, sched__worker_iowait_ns=2 * step * 0.9)
    assert verdict.cause is Cause.STORAGE
    assert verdict_on(**waits, sched__worker_iowait_ns=2 * step * 0.25).cause is None
    unknown = replace(TWO_CPUS, workers=None)
    assert verdict_on(unknown, **waits, sched__worker_iowait_ns=2 * step * 0.9).cause is None


def test_without_workers_the_training_thread_tells():
    alone = replace(TWO_CPUS, workers=0)
    assert verdict_on(alone, **WAITING).cause is Cause.TRANSFORM
    asleep = {"sched__main_iowait_ns": 90 * MS, "sched__main_offcpu_ns": 92 * MS}
    assert verdict_on(alone, **WAITING, **asleep).cause is Cause.STORAGE
    assert verdict_on(alone, **WAITING, sched__main_offcpu_ns=50 * MS).cause is None


def test_garbage_collection_counts_by_its_sum_however_rare():
    verdict = verdict_on(python__gc_ns=every(32, 32 * 30 * MS))
    assert (verdict.kind, verdict.cause) == (VerdictKind.COMPUTE, Cause.GARBAGE)
    assert "gc.freeze()" in verdict.advice.text
    assert verdict_on(python__gc_ns=every(32, 32 * 17 * MS)).cause is None  # too little to ask


@pytest.mark.parametrize(
    "unknown", ["sched__main_runqueue_ns", "sched__main_iowait_ns", "python__gil_wait_ns"]
)
def test_a_cause_is_named_only_where_nothing_unknown_can_outweigh_it(unknown):
    garbage = {"python__gc_ns": every(32, 32 * 30 * MS), "sched__main_offcpu_ns": 1 * MS}
    assert verdict_on(**garbage, **{unknown: nan}).cause is Cause.GARBAGE
    asleep = garbage | {"sched__main_offcpu_ns": 80 * MS, unknown: nan}
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
    assert "into a process" in verdict.advice.text
    assert "python/gil_wait_ns" in [row.metric for row in verdict.evidence]
    assert verdict_on(python__gil_wait_ns=6 * MS).cause is None  # too little to ask
    held_up = verdict_on(python__gil_wait_ns=30 * MS, sched__main_runqueue_ns=30 * MS)
    assert held_up.cause is None  # two causes share the time


def test_threads_that_may_make_the_batches_are_not_promised_to_cost_nothing():
    waits = {"python__gil_wait_ns": 60 * MS}
    idle = verdict_on(**waits, sched__thread_cpu_ns=30 * MS).advice
    assert idle.gain[0] > 1.3
    computing = verdict_on(**waits, sched__thread_cpu_ns=95 * MS)
    assert computing.cause is Cause.INTERPRETER
    assert computing.advice is None


def test_fsync_of_a_checkpoint_is_a_cause():
    saving = {"phase__checkpoint_ns": every(8, 800 * MS)}
    assert verdict_on(**saving).cause is None
    synced, written = every(8, 700 * MS), every(8, 750 * MS)
    assert verdict_on(**saving, io__main_fsync_ns=synced, io__fsync_ns=synced).cause is Cause.FSYNC
    assert verdict_on(**saving, io__checkpoint_write_ns=written).cause is Cause.WRITE


def test_what_others_sync_or_write_longer_than_a_checkpoint_takes_is_no_cause_of_it():
    saving = {"phase__checkpoint_ns": every(8, 800 * MS), "io__main_fsync_ns": 0.0}
    assert verdict_on(**saving, io__fsync_ns=every(8, 700 * MS)).cause is None
    assert verdict_on(**saving, io__checkpoint_write_ns=every(8, 1600 * MS)).cause is None


def test_a_gpu_that_is_always_in_a_phase_hides_what_the_host_waits_for():
    facts = replace(TWO_CPUS, has_accelerator=True)
    waiting = {"loader__wait_ns": 300 * MS}
    step = 399 * MS
    assert verdict_on(facts, **waiting).kind is VerdictKind.LOADER
    busy = verdict_on(facts, **waiting, gpu__forward_ns=0.3 * step, gpu__backward_ns=0.6 * step)
    assert busy.kind is None
    assert "the GPU is in forward, backward, optimizer or transfer for 9" in busy.abstained_because
    idle = verdict_on(facts, **waiting, gpu__forward_ns=0.1 * step, gpu__backward_ns=0.1 * step)
    assert idle.kind is VerdictKind.LOADER


def test_in_a_loop_that_marks_no_phase_an_optimizer_that_was_found_marks_itself():
    unmarked = {"without": MARKS[:2], "phase__other_ns": 95 * MS}
    assert verdict_on(**unmarked).kind is VerdictKind.COMPUTE


def test_what_others_take_of_the_cpus_is_a_share_of_the_time():
    """Most of it in few long steps."""
    taken = every(10, 0.9)
    summed = SummedSteps()
    summed.add(columns(phase__forward_ns=every(10, 1000 * MS), sched__others_cpu_ratio=taken))
    mean = summed.mean()["sched/others_cpu_ratio"]
    lasted = columns(phase__forward_ns=every(10, 1000 * MS))["step/duration_ns"]
    assert mean == pytest.approx(np.average(taken, weights=lasted))
    assert mean > 0.3


BACKWARD = {"without": MARKS[1:], "phase__forward_ns": 1 * MS}


def test_it_abstains_where_most_of_the_step_is_in_no_phase_though_some_are_marked():
    verdict = verdict_on(**BACKWARD, phase__other_ns=98 * MS)
    assert (verdict.ns_per_step, verdict.share, verdict.advice) == (None, None, None)
    assert verdict.kind is None
    assert verdict.abstained_because == (
        "98 % of the step is in no phase; not marked: backward, optimizer"
    )
    assert verdict.evidence[0].metric == "phase/other_ns"


@pytest.mark.parametrize("device_ms", [60, 90])
@pytest.mark.parametrize("reads", [nan, 0.0, 50.0])  # of anybody, loader workers too
@pytest.mark.parametrize("synced_ms", [0, 85])
def test_what_waits_for_a_device_may_be_a_checkpoint_in_no_phase(device_ms, reads, synced_ms):
    asleep = {
        **IN_STEP,
        "sched__work_iowait_ns": device_ms * MS,
        "memory__reclaim_ns": 0.0,
        "memory__main_reclaim_ns": 0.0,
        "memory__refault_count": 0.0,
        "io__main_fsync_ns": synced_ms * MS,
        "block__read_count": reads,
    }
    saving = verdict_on(**asleep, phase__other_ns=150 * MS)
    assert saving.kind is None
    assert "60 % of the step is in no phase" in (saving.abstained_because or "")
    held_up = verdict_on(**asleep, phase__other_ns=5 * MS)  # it cannot be there
    assert held_up.kind is VerdictKind.COMPUTE
    assert held_up.cause in (Cause.STORAGE, Cause.FSYNC)


def test_a_wait_that_outweighs_all_that_was_not_marked_is_still_told():
    assert verdict_on(**BACKWARD, **WAITING, phase__other_ns=90 * MS).kind is VerdictKind.LOADER
    assert verdict_on(**BACKWARD, **WAITING, phase__other_ns=110 * MS).kind is None


def test_a_loader_that_nobody_times_is_no_loader_that_never_waits():
    verdict = verdict_on(without=("loader/wait_ns",), phase__other_ns=40 * MS)
    assert verdict.kind is None
    assert "not marked: loader" in verdict.abstained_because


def test_it_abstains_from_phases_that_do_not_add_up():
    summed, wrong = SummedSteps(), columns()
    wrong[STEP] = wrong[STEP] * 1.03
    summed.add(wrong)
    assert judge(summed, TWO_CPUS).abstained_because == "the phases add up to 97 % of the step"


def test_it_abstains_from_a_handful_of_steps():
    assert verdict_on(steps=5).kind is None
    assert verdict_on(steps=6).kind is VerdictKind.COMPUTE


def test_want_of_a_cpu_in_a_collection_is_not_counted_twice():
    verdict = verdict_on(
        phase__forward_ns=838 * MS, python__gc_ns=750 * MS, sched__main_runqueue_ns=400 * MS
    )
    assert verdict.cause is Cause.GARBAGE  # 750 of 750 + 400 * (1 - 750 / 900)
    assert verdict.ns_per_step <= verdict.step_ns


def test_the_cpus_of_a_rank_are_shared_with_the_ranks_beside_it():
    host = {"usable_cpu_count": 8, "cpu_quota": 6.0, "cpu_count": 16}
    info = {"world_size": 4, "host": host, "settings": {"loader_workers": 3}}
    assert facts_from(info) == Facts(1.5, 2.0, quota=True, workers=3, world_size=4, ranks_here=4)
    assert facts_from(info | {"host": host | {"local_world_size": 2}}).usable_cpus == 3.0
    confined = facts_from(info | {"host": host | {"most_usable_cpu_count": 12}})
    assert (confined.usable_cpus, confined.most_cpus, confined.cpus_at_most) == (1.5, 3.0, 3.0)
    assert facts_from(info).cpus_at_most == 2.0
    assert facts_from({}) == Facts()


def test_a_verdict_is_json_and_a_sentence():
    verdict = verdict_on(**split(device=100))
    data = json.loads(json.dumps(verdict.as_json(), allow_nan=False))
    assert (data["kind"], data["cause"]) == ("loader-bound", "storage")
    assert sentence(verdict) == "loader-bound: 100 ms a step, 50 % of it; cause: storage"
    assert data["evidence"][0] == {
        "metric": "loader/wait_ns",
        "value": pytest.approx(100 * MS),
        "unit": "ns",
        "share": pytest.approx(100 / 199),
    }


def test_a_thread_that_lacks_its_cpu_for_longer_than_it_waits_for_data_is_not_loader_bound():
    waiting = {"loader__wait_ns": 40 * MS, "sched__main_offcpu_ns": 105 * MS}
    verdict = verdict_on(**waiting, sched__main_runqueue_ns=60 * MS, sched__others_cpu_ratio=0.8)
    assert (verdict.kind, verdict.cause) == (VerdictKind.COMPUTE, Cause.OTHERS)
    assert verdict_on(**waiting, sched__main_runqueue_ns=35 * MS).kind is VerdictKind.LOADER


@pytest.mark.parametrize("seed", range(40))
def test_no_share_is_above_one_and_units_do_not_matter(seed):
    rng = np.random.default_rng(seed)
    names = [name for name in INPUTS if not name.startswith("batch/")]
    steps = int(rng.integers(8, 200))
    found = {
        n: rng.exponential(10 ** rng.uniform(3, 8), steps) for n in names if rng.random() < 0.7
    }
    found |= {n: np.minimum(1.0, found[n] / 1e8) for n in found if n.endswith("_ratio")}
    found[STEP] = sum(found[n] for n in PHASES if n in found) + np.zeros(steps)
    facts = replace(TWO_CPUS, world_size=int(rng.integers(1, 3)))
    summed, twice = SummedSteps(), SummedSteps()
    summed.add(found)
    verdict = judge(summed, facts)
    assert verdict.share is None or 0 <= verdict.share <= 1
    assert all(row.share is None or 0 <= row.share <= 1 for row in verdict.evidence)
    json.dumps(verdict.as_json(), allow_nan=False)
    counts = ("_count", "_bytes", "_ratio")
    twice.add({n: v if n.endswith(counts) else v * 2 for n, v in found.items()})
    again = judge(twice, facts)
    slow = [kind for kind in (verdict.kind, again.kind) if kind is not None]
    assert len(set(slow)) <= 1, "a slower clock is no other cause"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("loader__wait_ns", VerdictKind.LOADER),
        ("phase__transfer_ns", VerdictKind.COPY),
        ("phase__checkpoint_ns", VerdictKind.CHECKPOINT),
        ("phase__validation_ns", VerdictKind.VALIDATION),
        ("sched__forward_sleep_ns", VerdictKind.SLEEP),
    ],
)
def test_more_of_a_cost_never_lowers_its_rank(name, kind):
    ranks = []
    for ms in (5, 20, 40, 80, 160, 640):
        changed = IN_STEP | {name: ms * MS, "phase__forward_ns": 38 * MS}
        if name == "sched__forward_sleep_ns":
            changed["phase__forward_ns"] = (38 + ms) * MS
        ranks.append(verdict_on(**changed).kind is kind)
    assert ranks == sorted(ranks)
    assert ranks[-1]


def test_a_phase_with_a_name_of_the_users_is_computation_and_has_its_name():
    named = columns(phase__forward_ns=20 * MS) | {"phase/augment_ns": np.full(STEPS, 60.0 * MS)}
    named[STEP] = named[STEP] + named["phase/augment_ns"]
    summed = SummedSteps()
    summed.add(named)
    verdict = judge(summed, TWO_CPUS)
    assert verdict.kind is VerdictKind.COMPUTE
    (row,) = (row for row in verdict.evidence if row.metric == "phase/augment_ns")
    assert (row.value, row.unit) == (pytest.approx(60 * MS), "ns")
    assert row.share == pytest.approx(60 / verdict.step_ns * MS)
    assert any(line.startswith("augment ") for line in lines(verdict))
    assert "phase/*_ns" not in {row.metric for row in verdict.evidence}


def test_nothing_that_took_no_time_is_evidence():
    for parts in ({"device": 100}, {"compute": 100}):
        verdict = verdict_on(**split(**parts), sched__main_await_ns=0.0)
        assert verdict.evidence
        assert all(row.value for row in verdict.evidence)


def test_of_two_costs_the_evidence_says_what_each_consists_of():
    made = {"loader__device_ns": 30 * MS, "loader__compute_ns": 5 * MS}
    summed = SummedSteps()
    summed.add(columns(loader__wait_ns=40 * MS, phase__transfer_ns=40 * MS, **made))
    verdict = judge(summed, TWO_CPUS)
    assert verdict.kind is VerdictKind.MIXED
    shown = [row.metric for row in verdict.evidence]
    assert shown[:4] == [*shown[:2], "loader/device_ns", "loader/compute_ns"]
    assert set(shown[:2]) == {"loader/wait_ns", "phase/transfer_ns"}


@pytest.mark.parametrize(
    ("of_workers", "told"), [((1.2, 2.1), {"workers": 2.0}), ((1.2, 1.5), {"transform": 0.5})]
)
def test_a_setting_comes_before_work_that_does_not_surely_bring_more(monkeypatch, of_workers, told):
    work = Advice("half the CPU time of making a batch", (1.57, 1.67), {"transform": 0.5})
    setting = Advice("num_workers=2", of_workers, {"workers": 2.0})
    monkeypatch.setattr(advice, "_replayed", lambda *_: iter((work, setting)))
    monkeypatch.setattr(advice, "_by_share", lambda *_: iter(()))
    assert advice.advise(VerdictKind.LOADER, Cause.TRANSFORM, None).change == told


def test_changes_are_ordered_by_what_is_sure_and_settings_by_what_may_be():
    gains = {"work": (1.5, 1.6), "less": (1.1, 1.2), "workers": (1.3, 1.5), "prefetch": (1.2, 1.4)}
    ordered = advice.in_order(gains, lambda one: [one], gains.__getitem__)
    assert ordered == ["workers", "work", "prefetch", "less"]
    gains["work"] = (1.51, 1.6)
    ordered = advice.in_order(gains, lambda one: [one], gains.__getitem__)
    assert ordered == ["work", "workers", "prefetch", "less"]


@pytest.mark.parametrize(("workers", "live_on"), [(2, False), (2, True), (0, False)])
def test_only_workers_that_end_with_their_epoch_are_told_to_live_on(monkeypatch, workers, live_on):
    tried: list[str] = []
    monkeypatch.setattr(advice, "_try", lambda _, change, text: tried.append(text) or ())
    monkeypatch.setattr(advice, "_workers", lambda *_: iter(()))
    facts = replace(TWO_CPUS, workers=workers, has_persistent_workers=live_on)
    now = SimpleNamespace(replay=object(), facts=facts)
    list(advice._replayed(VerdictKind.LOADER, None, now))
    assert tried == (["persistent_workers=True"] if workers and not live_on else [])
