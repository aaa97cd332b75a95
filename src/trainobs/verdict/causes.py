"""Why a part of the step takes its time: candidates, each with the time that it explains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isnan
from typing import NamedTuple

from trainobs.verdict import blocks
from trainobs.verdict.blocks import Usual
from trainobs.verdict.costs import Costs, known
from trainobs.verdict.verdict import Cause, Facts, VerdictKind

COVERAGE = 0.80
"""Share of the time in question that a cause has to explain before it is named."""

LOST = 0.10
"""Share of the step that computation has to lose before a cause is looked for."""


class Situation(NamedTuple):
    """All that a rule may look at."""

    usual: Usual
    costs: Costs
    facts: Facts

    def ns(self, metric: str) -> float:
        """Value of a metric per step, NaN if unknown."""
        return self.usual.mean[metric]


class Candidate(NamedTuple):
    """A possible cause.

    Attributes:
        cause: its name.
        ns: how much of the time in question it explains, per step.
        metrics: where that number comes from.
    """

    cause: Cause
    ns: float
    metrics: tuple[str, ...]


Candidates = Iterator[Candidate]


def find(kind: VerdictKind, now: Situation) -> Candidate | None:
    """The first candidate of a kind that covers the time in question, or None."""
    whole, candidates = _QUESTIONS[kind](now)
    return next((c for c in candidates if whole > 0 and c.ns >= COVERAGE * whole), None)


def _loader(now: Situation) -> tuple[float, Candidates]:
    return now.costs.part[VerdictKind.LOADER], (_split(now) if _is_split(now) else _inferred(now))


def _is_split(now: Situation) -> bool:
    return not isnan(now.ns(blocks.SPLIT[0]))


def _split(now: Situation) -> Candidates:
    """From the wait as it was divided where the batches were made."""
    names = blocks.SPLIT
    device, cpu_wait, compute, asleep, handover = (now.ns(name) for name in names)
    yield Candidate(Cause.STORAGE, known(device), names[:1])
    yield Candidate(Cause.TRANSFORM, known(compute), names[2:3])
    yield Candidate(Cause.SLEEP, known(asleep), names[3:4])
    if not isnan(asleep):  # older run logs have it in the hand-over
        yield Candidate(Cause.HANDOVER, known(handover), names[4:])
    yield Candidate(contention(now), known(cpu_wait), (names[1], *_CONTENTION))
    yield Candidate(Cause.LOADER_CPU, known(cpu_wait) + known(compute), names[1:3])


def _inferred(now: Situation) -> Candidates:
    """From the scheduler, where the wait is not divided.

    A training thread that waits for its loader leaves no worker idle, so workers spend their time
    on what the wait is for. What they compute is left unsaid: from here it looks like idleness.
    """
    wait, workers = now.costs.part[VerdictKind.LOADER], now.facts.workers
    if workers is None:
        return
    who = "worker" if workers else "main"
    share = wait / (workers * now.costs.step) if workers else 1.0
    for cause, what in ((Cause.STORAGE, "iowait"), (contention(now), "runqueue")):
        metric = f"sched/{who}_{what}_ns"
        yield Candidate(cause, known(now.ns(metric)) * share, (metric,))
    if not workers:  # the training thread makes the batches, and was on the CPU for the rest
        off = "sched/main_offcpu_ns"
        yield Candidate(Cause.TRANSFORM, known(wait - now.ns(off)), (off,))


def _compute(now: Situation) -> tuple[float, Candidates]:
    """What computation may have lost; nothing to explain if what is known of it is little."""
    worth_it = now.costs.lost >= LOST * now.costs.step
    return (now.costs.most_lost if worth_it else 0.0), _losses(now.costs, now)


def _losses(costs: Costs, now: Situation) -> Candidates:
    yield Candidate(Cause.GARBAGE, known(costs.garbage), (blocks.GARBAGE,))
    yield Candidate(Cause.STORAGE, known(costs.device), ("sched/main_iowait_ns",))
    yield Candidate(Cause.INTERPRETER, known(costs.interpreter), (blocks.INTERPRETER,))
    runqueue = known(costs.runqueue)
    yield Candidate(contention(now), runqueue, ("sched/main_runqueue_ns", *_CONTENTION))


_CONTENTION = (
    "sched/thread_runqueue_ns",
    "sched/worker_runqueue_ns",
    "sched/others_cpu_ratio",
)


def taken_by_others(now: Situation) -> float:
    """Share of this rank's CPUs that went to processes that are no ranks; NaN if unknown.

    Other ranks are entitled to their part of the machine. Below 0: they use less than that.
    """
    ranks = now.facts.ranks_here
    return now.ns("sched/others_cpu_ratio") * ranks - (ranks - 1)


def contention(now: Situation) -> Cause:
    """Who took the CPUs that this run waited for.

    On average `waiting` threads of this run had no CPU. Threads that are no more than the CPUs
    can never all wait, so as many waiting ones as CPUs are too many. Below that, others are to
    blame for as much as the CPU time they used would have served.
    """
    cpus, taken = now.facts.usable_cpus, taken_by_others(now)
    names = ("sched/main_runqueue_ns", "sched/thread_runqueue_ns", "sched/worker_runqueue_ns")
    waits = [now.ns(name) for name in names]
    waiting = sum(map(known, waits)) / now.costs.step
    if cpus is None:
        return Cause.CPU
    if waiting >= cpus:
        return Cause.OWN_THREADS
    if any(map(isnan, waits)):  # there may be more that wait than is known of
        return Cause.CPU
    if not isnan(taken) and taken * cpus >= COVERAGE * waiting:
        return Cause.OTHERS
    if not isnan(taken) and taken * cpus <= (1 - COVERAGE) * waiting:
        return Cause.OWN_THREADS
    return Cause.CPU


def _checkpoint(now: Situation) -> tuple[float, Candidates]:
    return now.costs.part[VerdictKind.CHECKPOINT], _measured(
        now, {Cause.FSYNC: "io/fsync_ns", Cause.WRITE: "io/checkpoint_write_ns"}
    )


def _memory(now: Situation) -> tuple[float, Candidates]:
    reclaim = "memory/reclaim_ns"
    back = Candidate(Cause.FAULTS, known(now.costs.device), ("memory/major_fault_count",))
    return now.costs.part[VerdictKind.MEMORY], iter(
        (Candidate(Cause.RECLAIM, known(now.ns(reclaim)), (reclaim,)), back)
    )


def _communication(now: Situation) -> tuple[float, Candidates]:
    """All wait for the rank that waits least: it is the one that they wait for."""
    whole = now.costs.part[VerdictKind.COMMUNICATION]
    least = min(now.facts.others_wait_ns.values(), default=whole)
    metric = ("ranks/wait_ns",)
    return whole, iter((Candidate(Cause.STRAGGLER, whole - least, metric),))


def _nothing(now: Situation) -> tuple[float, Candidates]:
    """No record says why a copy takes its time, and several costs have no one cause."""
    return 0.0, iter(())


def _measured(now: Situation, metrics: dict[Cause, str]) -> Candidates:
    for cause, metric in metrics.items():
        yield Candidate(cause, known(now.ns(metric)), (metric,))


_QUESTIONS: dict[VerdictKind, Callable[[Situation], tuple[float, Candidates]]] = {
    VerdictKind.LOADER: _loader,
    VerdictKind.COPY: _nothing,
    VerdictKind.COMPUTE: _compute,
    VerdictKind.COMMUNICATION: _communication,
    VerdictKind.CHECKPOINT: _checkpoint,
    VerdictKind.MEMORY: _memory,
    VerdictKind.MIXED: _nothing,
}
"""Kind -> the time in question, and the candidates for it, narrow ones first."""
