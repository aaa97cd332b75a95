"""Who has the CPUs that threads of a run wait for."""

from __future__ import annotations

from math import inf, isnan

from trainobs.verdict import metric_names as names
from trainobs.verdict.parts import Situation, known
from trainobs.verdict.verdict import Cause

FULL = 0.85
"""Use of its CPUs from which on a run that waits for them has no other cause than itself."""

LITTLE_TAKEN = 0.2
"""Share of a rank's CPUs up to which others do not keep it from them."""

CROWD = 2.0
"""Threads of the training process for each CPU that wait for it, on average, from which on they are
far too many. A few wait wherever the CPUs are in full use."""

THROTTLES = 0.1
"""Share of the step in which a quota that is used up has to keep threads from CPUs."""

THROTTLED = 0.5
"""Share of the time without a CPU that a quota must explain, to be what it is for."""

TWICE = 1.2
"""Use of all CPUs by this run and others from which on something was counted for both."""

_WAITING = ("sched/main_runqueue_ns", "sched/thread_runqueue_ns", "sched/worker_runqueue_ns")
_USING = ("sched/thread_cpu_ns", "sched/worker_cpu_ns", "sched/child_cpu_ns")


def taken_by_others(now: Situation) -> float:
    """Share of this rank's CPUs that went to processes that are no ranks; NaN if unknown.

    Other ranks are entitled to their part of the machine. Below 0: they use less than that.
    """
    ranks = now.facts.ranks_here
    return now.ns("sched/others_cpu_ratio") * ranks - (ranks - 1)


def free_cpus(now: Situation) -> float | None:
    """CPUs that others leave to this rank; None if unknown."""
    facts, taken = now.facts, known(taken_by_others(now))
    if facts.usable_cpus is None:
        return None
    left = (facts.all_cpus or facts.usable_cpus) * (1 - min(0.95, max(0.0, taken)))
    return min(facts.usable_cpus, left)


def within_quota(now: Situation, cpus: float) -> float:
    """So many CPUs; what this run used, if less, where a quota that nobody sees was used up."""
    used, throttled = cpus_used(now), now.ns("sched/throttled_ns")
    is_used_up = throttled >= THROTTLES * now.parts.step and not knows_quota(now)
    return used if is_used_up and used < cpus else cpus


def knows_quota(now: Situation) -> bool:
    """Whether the quota that throttles is the known one, not that of a group above a container."""
    facts = now.facts
    return facts.quota and not (
        facts.quota_hidden and cpus_used(now) < FULL * (facts.usable_cpus or inf)
    )


def cpus_used(now: Situation) -> float:
    """CPUs that this run computes on, on average; NaN if unknown."""
    own = now.parts.step - now.ns("sched/main_offcpu_ns")
    return (own + sum(now.ns(name) for name in _USING)) / now.parts.step


def lacked_share(now: Situation) -> float:
    """Share of the step in which the training thread, or who made its batches, lacked a CPU."""
    lacked = known(now.ns(names.LOADER_CPU_WAIT)) + known(now.parts.runqueue)
    return min(1.0, lacked / now.parts.step)


def is_full(now: Situation) -> bool:
    """Whether this run and others surely used about all CPUs: else a wait has another reason."""
    cpus = now.facts.cpus_at_most or now.facts.usable_cpus or inf
    return cpus_used(now) + taken_by_others(now) * cpus >= FULL * cpus


def contention(now: Situation) -> Cause:
    """What kept the threads of this run from the CPUs that they waited for.

    On average `waiting` threads of this run had no CPU. Others are to blame if the CPU time they
    used would have served most of these; the run itself, if it uses about all that there is.
    """
    facts, cpus, taken = now.facts, now.facts.usable_cpus, taken_by_others(now)
    waits = [now.ns(name) for name in _WAITING]
    waiting = sum(map(known, waits)) / now.parts.step
    if _is_throttled(now, waiting):
        return Cause.QUOTA
    if cpus is None or any(map(isnan, waits)):  # there may be more that wait than is known of
        return Cause.CPU
    all_cpus = facts.all_cpus or cpus
    # Where CPUs are idle, what keeps threads from them may be a quota that nobody here can see.
    suspects_others = is_full(now) or not facts.quota_hidden
    # What this run has started and let go of (a daemon) is in both: what others take is unknown.
    if cpus_used(now) + taken * all_cpus >= TWICE * all_cpus:
        return Cause.CPU
    if suspects_others and not isnan(taken) and taken * all_cpus >= 0.8 * min(waiting, all_cpus):
        return Cause.OTHERS
    crowd = CROWD * (facts.most_cpus or cpus)
    if known(now.ns("sched/thread_runqueue_ns")) >= crowd * now.parts.step:
        return Cause.OWN_THREADS
    # Where others take much, it may be they; and other ranks may have got less than their part,
    # which `taken` takes them to have.
    usable = facts.most_cpus or free_cpus(now) or cpus
    if taken <= LITTLE_TAKEN and cpus_used(now) >= FULL * usable:
        return Cause.FULL
    return Cause.CPU


def _is_throttled(now: Situation, waiting: float) -> bool:
    """Whether the quota of a control group kept the threads of this run from CPUs.

    It may have been set, and its group entered, as the run went on: what it kept tells, and what is
    known of the quota itself only helps where neither changed.

    Args:
        now: the situation.
        waiting: threads that had no CPU, on average. More than there are CPUs are not throttled.
    """
    facts, throttled = now.facts, known(now.ns("sched/throttled_ns")) / now.parts.step
    stayed = facts.quota and facts.most_cpus is None and facts.usable_cpus is not None
    if stayed and throttled >= THROTTLES and cpus_used(now) >= FULL * (facts.usable_cpus or inf):
        return True
    return throttled >= THROTTLED * min(waiting, facts.all_cpus or inf) and throttled > 0
