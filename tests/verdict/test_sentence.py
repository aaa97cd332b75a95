"""What is said of a verdict: its time, its costs, its evidence."""

from __future__ import annotations

from dataclasses import replace
from math import nan

from tests.verdict.constructed import IN_STEP, MS, TWO_CPUS, split, verdict_on
from trainobs.verdict.sentence import lines, notes, sentence
from trainobs.verdict.verdict import Cause, VerdictKind


def test_a_sentence_says_what_its_time_is():
    lost = {"sched__work_runqueue_ns": 20 * MS, "sched__work_iowait_ns": 20 * MS}
    memory = {"memory__reclaim_ns": 0.0, "memory__main_reclaim_ns": 0.0}
    verdict = verdict_on(**IN_STEP | lost | memory)
    assert sentence(verdict) == (
        "compute-bound: held up for 40.1 ms a step, 40 % of it; by no one cause"
    )
    mixed = verdict_on(loader__wait_ns=45 * MS, phase__transfer_ns=40 * MS)
    assert sentence(mixed).startswith("mixed of loader-bound and copy-bound: 85 ms a step, ")
    assert verdict.as_json()["held_up"]
    assert mixed.as_json()["costs"][0] == "loader-bound"


def test_the_time_of_a_cause_is_its_own_and_not_that_of_others_beside_it():
    garbage = {"python__gc_ns": 60 * MS, "sched__main_runqueue_ns": 30 * MS}
    assert sentence(verdict_on(**garbage)) == (
        "compute-bound: 60 ms a step, 60 % of it; cause: Python's garbage collector"
    )


def test_evidence_has_no_nothing():
    slept = {"sched__other_sleep_ns": 60 * MS, "phase__other_ns": 70 * MS}
    verdict = verdict_on(**IN_STEP | slept, net__received_bytes=5e3)
    assert verdict.kind is VerdictKind.SLEEP
    assert [row.metric for row in verdict.evidence[:2]] == [
        "sched/other_sleep_ns",
        "net/received_bytes",
    ]


def test_what_is_in_no_phase_though_all_are_marked_is_said_to_be_code():
    because = verdict_on(phase__other_ns=90 * MS).abstained_because
    assert because.endswith("in no phase: code of the loop, or of a callback, that nobody marks")


def test_code_in_the_logging_phase_is_not_called_unmarked():
    logging = {"phase__logging_ns": 90 * MS, "io__main_fsync_ns": 40 * MS}
    because = verdict_on(**logging).abstained_because
    assert because == "47 % of the step is in the logging phase"
    because = verdict_on(**logging | {"io__main_fsync_ns": 50 * MS}).abstained_because
    assert because.endswith("phase; the training thread is inside fsync for 26 % of the step")
    saved = {"io__main_fsync_ns": 50 * MS, "io__checkpoint_fsync_ns": 50 * MS}
    assert "fsync" not in verdict_on(**logging | saved).abstained_because
    because = verdict_on(phase__logging_ns=50 * MS, phase__other_ns=50 * MS).abstained_because
    assert because == (
        "25 % of the step is in the logging phase, and 25 % in no phase: "
        "code of the loop, or of a callback, that nobody marks"
    )


def test_who_took_the_cpus_is_told_where_it_is_half_of_the_cause():
    alone = replace(TWO_CPUS, workers=0)
    wait = split(cpu_wait=48, compute=52)
    ready = {"sched__work_runqueue_ns": 2 * MS, "sched__main_runqueue_ns": 50 * MS}
    ready["sched__work_offcpu_ns"] = 2 * MS  # it sleeps nowhere
    used = {f"sched__{who}_cpu_ns": 0.0 for who in ("thread", "worker", "child")}
    taken = used | {"sched__others_cpu_ratio": 0.5}
    verdict = verdict_on(alone, **IN_STEP | wait | ready | taken)
    assert (verdict.kind, verdict.cause) == (VerdictKind.LOADER, None)
    told = "a CPU was lacking for 25 % of the step, because of other processes on its CPUs"
    assert list(notes(verdict)) == [told]
    assert verdict.as_json()["cpu_taken_by"] == "other processes on its CPUs"
    assert verdict.as_json()["cpu_taken_by_code"] == "others"
    # Nobody is blamed who left the CPUs alone, who is the cause already, for a small part, where
    # a CPU was idle, and where nobody knows that none was.
    for changed in (
        {"sched__main_offcpu_ns": 120 * MS},
        {"sched__child_cpu_ns": nan},
        {"sched__others_cpu_ratio": 0.02},
        split(cpu_wait=95, compute=5),
        split(cpu_wait=20, compute=80) | {"sched__main_runqueue_ns": 22 * MS},
    ):
        other = verdict_on(alone, **IN_STEP | wait | ready | taken | changed)
        assert other.cpu_taken_by is None, changed
        assert not list(notes(other))


def test_why_made_batches_come_late_is_told_as_what_may_be():
    # What other threads of a worker wait for nobody counts; and it may compute without the lock.
    transform = replace(verdict_on(**split(compute=40)), cause=Cause.TRANSFORM)
    assert not list(notes(transform))
    handed = replace(transform.evidence[0], metric="loader/handover_ns", share=0.9)
    (told,) = notes(replace(transform, evidence=(handed, *transform.evidence)))
    assert told.startswith("batches that are made are received late: their worker may hold")


def test_of_what_is_not_in_all_steps_time_and_share_are_told_as_means_of_all():
    late = [1 * MS] * 40 + [200 * MS] * 24
    told = sentence(verdict_on(loader__wait_ns=late, sched__main_offcpu_ns=late))
    assert told == "loader-bound: 75.6 ms a step on average, 43 % of all time, since step 40"


def test_a_row_stands_below_another_only_as_a_part_of_it():
    held_up = verdict_on(sched__work_runqueue_ns=60 * MS, sched__main_runqueue_ns=60 * MS)
    shown = [line for line in lines(held_up) if "no CPU" in line]
    assert shown
    assert not any(line.startswith(" ") for line in shown)
    assert any(line.startswith("training thread ready, no CPU free") for line in shown)
    waits = list(lines(verdict_on(**split(compute=80, handover=20))))
    at = next(n for n, line in enumerate(waits) if line.startswith("waiting for data"))
    assert waits[at + 1].startswith("  loader computes")


def test_the_wait_in_the_evidence_is_the_one_of_the_sentence():
    over = split(compute=80, handover=20) | {"sched__wait_offcpu_ns": 97 * MS}
    verdict = verdict_on(**over)
    rows = {row.metric: row.value for row in verdict.evidence}
    assert rows["loader/wait_ns"] == verdict.ns_per_step == 99 * MS
    assert rows["loader/compute_ns"] + rows["loader/handover_ns"] == 99 * MS


def test_a_lock_that_is_polled_is_not_left_to_look_like_the_interpreter_lock():
    polled = {"python__gil_wait_ns": 60 * MS, "sched__thread_cpu_ns": 1 * MS}
    verdict = verdict_on(**IN_STEP | {"sched__work_offcpu_ns": 62 * MS} | polled)
    assert verdict.kind is VerdictKind.SLEEP
    assert any("another lock" in note for note in notes(verdict))


def test_a_lock_that_the_thread_of_trainobs_may_have_held_is_not_called_another_one():
    held = {"python__gil_wait_ns": 60 * MS, "sched__thread_cpu_ns": 1 * MS, "obs__cpu_ns": 50 * MS}
    verdict = verdict_on(**IN_STEP | {"sched__work_offcpu_ns": 62 * MS} | held)
    assert verdict.kind is VerdictKind.COMPUTE  # nor is it sleep
    late = {"sched__other_sleep_ns": 40 * MS, "phase__other_ns": 42 * MS}
    slept = verdict_on(**IN_STEP | {"sched__work_offcpu_ns": 102 * MS} | held | late)
    assert slept.kind is VerdictKind.SLEEP
    assert not list(notes(slept))
