"""Steps of which no phase is known: what the kernel counts of the training thread tells."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest

from tests.verdict.constructed import MS, STEPS
from trainobs.verdict.facts import Facts, facts_from
from trainobs.verdict.metric_names import STEP
from trainobs.verdict.rules import judge
from trainobs.verdict.sentence import lines, notes, sentence
from trainobs.verdict.summed_steps import StepInputs, SummedSteps
from trainobs.verdict.verdict import Cause, Verdict, VerdictKind

OUTSIDE = Facts(usable_cpus=2.0, all_cpus=2.0, sees_switches=True)
QUIET = {
    "sched/main_offcpu_ns": 1.0,
    "sched/main_runqueue_ns": 1.0,
    "sched/main_iowait_ns": 0.0,
    "sched/thread_runqueue_ns": 0.0,
    "sched/worker_runqueue_ns": 0.0,
    "sched/thread_cpu_ns": 0.0,
    "sched/child_cpu_ns": 0.0,
    "sched/others_cpu_ratio": 0.0,
    "memory/reclaim_ns": 0.0,
    "memory/main_reclaim_ns": 0.0,
    "memory/major_fault_count": 0.0,
    "memory/refault_count": 0.0,
    "io/main_fsync_ns": 0.0,
    "block/read_count": 0.0,
}
"""In ms, of a step of 100 ms; others are no times."""


def outside(facts: Facts = OUTSIDE, **of_step: float) -> Verdict:
    """The verdict on steps of 100 ms; `off` is what the thread is off the CPU for, all in all."""
    values = QUIET | {name.replace("__", "/"): value for name, value in of_step.items()}
    scaled = {name: value * MS if name.endswith("_ns") else value for name, value in values.items()}
    summed = SummedSteps()
    columns = {name: [value] * STEPS for name, value in {STEP: 100 * MS, **scaled}.items()}
    summed.take(StepInputs(columns))
    return judge(summed, facts)


def queued(ms: float, asleep: float = 0.0, device: float = 0.0) -> dict[str, float]:
    return {
        "sched__main_offcpu_ns": ms + asleep + device,
        "sched__main_runqueue_ns": ms,
        "sched__main_iowait_ns": device,
    }


def test_a_thread_that_had_no_cpu_is_held_up_whatever_it_did():
    verdict = outside(**queued(54), sched__others_cpu_ratio=0.76)
    told = sentence(verdict)
    assert told == "no CPU free: 54 ms a step, 54 % of it; cause: other processes on its CPUs"
    assert [one.metric for one in verdict.evidence][:1] == ["sched/main_runqueue_ns"]
    (note,) = (line for line in lines(verdict) if "not told apart" in line)
    assert "`obs.loader` or `obs.phase` in the script" in note  # `observe` alone does not


def test_who_had_the_cpus_is_no_cause_where_nobody_knows():
    verdict = outside(**queued(54), sched__others_cpu_ratio=nan)
    assert (verdict.kind, verdict.cause) == (VerdictKind.NO_CPU, None)


def test_threads_of_its_own_are_named():
    verdict = outside(**queued(40), sched__thread_runqueue_ns=500, sched__thread_cpu_ns=130)
    assert (verdict.kind, verdict.cause) == (VerdictKind.NO_CPU, Cause.OWN_THREADS)


def test_a_thread_that_had_a_cpu_computes_and_nobody_says_what():
    verdict = outside(**queued(6))
    assert sentence(verdict) == "computing: 94 ms a step, 94 % of it"
    assert verdict.kind is VerdictKind.ON_CPU
    assert verdict.advice is None


@pytest.mark.parametrize(("ms", "kind"), [(19, VerdictKind.ON_CPU), (21, VerdictKind.NO_CPU)])
def test_less_than_a_fifth_holds_nothing_up(ms, kind):
    assert outside(**queued(ms)).kind is kind


def test_sleep_is_sleep_where_there_is_nobody_to_wait_for():
    verdict = outside(**queued(1, asleep=60), sched__others_cpu_ratio=0.9)
    assert sentence(verdict) == "asleep: at least 60 ms a step, 60 % of it; cause: not known"


def test_sleep_while_own_processes_computed():
    verdict = outside(**queued(1, asleep=60), sched__child_cpu_ns=90)
    assert (verdict.kind, verdict.cause) == (VerdictKind.SLEEP, Cause.CHILDREN)


def test_sleep_while_other_threads_compute_may_be_a_wait_for_them():
    verdict = outside(**queued(1, asleep=60), sched__thread_cpu_ns=50)
    assert verdict.kind is None
    assert "60 % of the step the training thread sleeps, and other threads" in sentence(verdict)
    assert [one.metric for one in verdict.evidence] == [
        "sched/main_offcpu_ns",
        "sched/main_runqueue_ns",
    ]


def test_sleep_of_a_rank_may_be_for_others():
    verdict = outside(replace(OUTSIDE, world_size=2, ranks_here=2), **queued(1, asleep=60))
    assert "may be for other ranks" in sentence(verdict)


def test_a_steal_that_proc_cannot_tell_from_sleep_is_no_sleep():
    of_proc = replace(OUTSIDE, sees_switches=False)
    assert outside(of_proc, **queued(1, asleep=60), sched__others_cpu_ratio=0.9).kind is None


@pytest.mark.parametrize("asleep", [80, 5])
def test_with_a_gpu_neither_sleep_nor_cpu_time_tells(asleep):
    """CUDA waits for the GPU asleep, or by asking again and again."""
    verdict = outside(replace(OUTSIDE, has_accelerator=True), **queued(5, asleep=asleep))
    assert verdict.kind is None
    assert "may wait for the GPU" in sentence(verdict)
    assert list(notes(verdict))


def test_with_a_gpu_a_thread_that_mostly_lacks_a_cpu_is_held_up():
    verdict = outside(replace(OUTSIDE, has_accelerator=True), **queued(50, asleep=20))
    assert verdict.kind is VerdictKind.NO_CPU
    assert outside(replace(OUTSIDE, has_accelerator=True), **queued(30, asleep=20)).kind is None


def test_a_device_and_fsync_are_told():
    assert outside(**queued(1, device=40)).kind is VerdictKind.DEVICE
    verdict = outside(**queued(1, device=40), io__main_fsync_ns=39)
    assert sentence(verdict) == "waiting for a device: 40 ms a step, 40 % of it; cause: fsync"


def test_want_of_memory_is_told_from_other_waits_for_a_device():
    of_memory = {"memory__refault_count": 50, "memory__major_fault_count": 50}
    freed = {"memory__reclaim_ns": 2, "memory__main_reclaim_ns": 2}
    assert outside(**queued(1, device=40), **of_memory, **freed).kind is VerdictKind.MEMORY


def test_two_that_are_as_large_are_both_told():
    verdict = outside(**queued(35, asleep=30))
    assert verdict.kind is VerdictKind.MIXED
    assert verdict.costs == (VerdictKind.NO_CPU, VerdictKind.SLEEP)
    assert sentence(verdict) == "mixed of no CPU free and asleep: 65 ms a step, 65 % of it"


def test_without_the_scheduler_nothing_is_known():
    verdict = outside(sched__main_offcpu_ns=nan)
    assert sentence(verdict).endswith("nor when the training thread had a CPU")


@pytest.mark.parametrize(
    ("level", "sees"), [("ebpf", True), ("attached", True), ("procfs", False), (None, False)]
)
def test_the_level_of_a_run_tells_who_counted_its_switches(level, sees):
    assert facts_from({"level": level}).sees_switches is sees


def test_of_the_cpus_that_others_took_it_is_told_what_the_same_job_did():
    job = replace(OUTSIDE, siblings=1, siblings_cpu_ratio=0.48)
    told = "1 other process with torch, of its process group, took 48 % of the CPUs"
    assert told in list(notes(outside(job, **queued(54), sched__others_cpu_ratio=0.76)))
    assert told not in list(notes(outside(job, **queued(5), sched__others_cpu_ratio=0.76)))
    little = replace(job, siblings_cpu_ratio=0.01)
    assert outside(little, **queued(54), sched__others_cpu_ratio=0.76).siblings == 0


def test_what_the_same_job_took_is_read_from_the_run():
    noted = {"attached": {"siblings": {"processes": 2, "cpu_ratio": 0.5}}}
    facts = facts_from({"settings": noted})
    assert (facts.siblings, facts.siblings_cpu_ratio) == (2, 0.5)
    assert facts_from({"settings": {"attached": None}}).siblings == 0
