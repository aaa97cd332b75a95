"""Why a part of the step takes its time: candidates, each with the time that it explains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf, isnan, nan
from typing import NamedTuple

from trainobs.replay.handover import COMPUTES, NO_DRAW, NOTHING
from trainobs.replay.opening import surely_opened
from trainobs.replay.predict import Replay
from trainobs.replay.trace import COVERAGE, Trace
from trainobs.verdict import asleep, kept
from trainobs.verdict import metric_names as names
from trainobs.verdict.cpus import contention
from trainobs.verdict.handover import are_uneven, drawn, fetched, handed_over, kept_by_makers
from trainobs.verdict.parts import TAKEN_NS, Situation, known, stolen
from trainobs.verdict.verdict import Cause, VerdictKind

RIVAL_CAUSE = 0.60
"""Share of the largest cause from which on a second one keeps it from being named."""

SMALLEST_PAGE = 4096
"""Bytes, of all kernels that are supported."""

STORAGE_SHOWS = 0.1
"""Share of the step waited for storage, from which on it is told that memory lost what it reads."""

ALONE = 0.1
"""Share of the step for which the others must wait for one rank alone, for it to be named."""


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
    """The candidate that covers the time in question, with none beside it; or None."""
    if kind is VerdictKind.SLEEP:
        return _asleep(now)
    whole, candidates = _QUESTIONS[kind](now)
    ordered = sorted(candidates, key=lambda one: -one.ns)
    if not ordered or whole <= 0 or ordered[0].ns < COVERAGE * whole:
        return None
    # What nothing explains may be one thing, too.
    rest = max(whole - sum(one.ns for one in ordered), *(one.ns for one in ordered[1:]), 0.0)
    return None if rest > RIVAL_CAUSE * ordered[0].ns else ordered[0]


def _loader(now: Situation) -> tuple[float, Candidates]:
    whole = now.parts.part[VerdictKind.LOADER]
    rest = whole - known(now.ns(names.LOADER_DEVICE))
    if rest >= COVERAGE * whole and asleep.is_beyond_high(now, rest):
        return whole, iter((Candidate(Cause.HIGH, rest, asleep.TOLD_BY[Cause.HIGH]),))
    if now.replay and now.facts.workers:
        whole, candidates = _replayed(now, now.replay)
        if now.replay.trace.is_paced:  # what else takes less time leaves more to wait for it
            return whole, (one for one in candidates if one.cause is Cause.STORAGE)
        return whole, candidates
    if now.facts.workers is None:
        return whole, iter((Candidate(Cause.FETCH, fetched(now), _FETCHED),))
    return whole, (_inferred(now) if isnan(now.ns(names.LOADER_DEVICE)) else _split(now))


def _replayed(now: Situation, replay: Replay) -> tuple[float, Candidates]:
    """What a step would be shorter by if a part of loading took no time (Coz, SOSP 2015)."""

    def saved(**fields: object) -> float:
        trace = replace(replay.trace, **fields)  # type: ignore[arg-type]
        return now.parts.step * (1.0 - 1.0 / replay.gain(trace))

    trace: Trace = replay.trace
    none, other = 0.0 * trace.make_cpu, trace.other_start[1]
    device, sleep, why = {"make_device": none}, {"make_sleep": none}, asleep.cause_of(now)
    hand = trace.hand
    held = replace(NOTHING, feed=hand.feed_held, feed_held=hand.feed_held, away=hand.held)
    free = replace(
        hand,
        feed=hand.feed - hand.feed_held,
        feed_held=0.0,
        away=hand.away - hand.held,
        held=0.0,
    )
    whole = saved(**device, **sleep, make_cpu=none, hand=NOTHING, draw=NO_DRAW, start=0.0)
    # It may be more: what nobody makes leaves CPUs to the step. But the wait is in question.
    whole = min(whole, known(now.parts.part[VerdictKind.LOADER]))
    taken = replace(hand, receive=min(hand.receive, TAKEN_NS))
    own = min(saved(hand=taken), fetched(now))
    handed = min(saved(hand=held), handed_over(now)) - own
    lacked = known(now.ns("sched/wait_runqueue_ns")) + known(now.ns("sched/worker_runqueue_ns"))
    # Who computes nothing needs no CPU; but what others take of them is no work of the loader's.
    lacked = min(saved(cpus=inf, most_cpus=inf), lacked) if _lacks(now) else 0.0
    opened, awaited = surely_opened(trace)  # by workers that are new
    rest = {"make_cpu": trace.make_cpu - opened, "make_sleep": trace.make_sleep - awaited}
    computed = max(0.0, saved(make_cpu=opened, hand=free) - known(lacked))
    started = trace.start - _theirs(trace.start, trace.start - other)
    return whole, iter(
        (
            Candidate(Cause.STORAGE, saved(**device), (names.LOADER_DEVICE,)),
            Candidate(Cause.TRANSFORM, computed, (names.LOADER_COMPUTE,)),
            Candidate(why, saved(make_sleep=awaited), _slept(why)),
            Candidate(Cause.SAMPLER, saved(draw=NO_DRAW), ()),
            Candidate(Cause.FETCH, own, _FETCHED),
            Candidate(Cause.HANDOVER, max(0.0, handed), (names.HANDOVER,)),
            *_start(now, saved(start=started, **rest)),
            Candidate(_lack(now), lacked, (names.LOADER_CPU_WAIT,)),
            _locked_out(now.parts.loader_interpreter),
        )
    )


def _locked_out(ns: float) -> Candidate:
    """The training thread, as it gets a batch, by threads that compute in Python."""
    return Candidate(Cause.INTERPRETER, ns, (names.WAITED_FOR_GIL,))


def _slept(why: Cause) -> tuple[str, ...]:
    """The metrics of what the loader slept for."""
    return (names.LOADER_SLEEP, *asleep.TOLD_BY.get(why, ()))


def _start(now: Situation, ns: float) -> Candidates:
    """Workers that start, if new ones do."""
    if now.facts.has_new_workers:
        cause = Cause.REMADE if now.facts.has_new_loaders else Cause.START
        yield Candidate(cause, ns, (names.START, names.STARTING_WORKERS))


def _theirs(start: float, sure: float) -> float:
    """What of a start is laid to the workers: all of it, where most of it is surely theirs."""
    return known(start if 2 * known(sure) >= start else sure)


def _lacks(now: Situation) -> bool:
    """Whether CPUs are taken by what is no part of the loader: else its own use is the cause."""
    return contention(now) in (Cause.OTHERS, Cause.QUOTA)


def _lack(now: Situation) -> Cause:
    return contention(now) if _lacks(now) else Cause.CPU


def kernels_share(now: Situation) -> float:
    """Share of what the loader computes that may be the kernel's, which copies, or frees memory.

    Other threads may do that, too. Memory may be freed inside read calls, so that these are not
    added up. What they lacked CPUs for is taken to be spread evenly.
    """
    busy = known(now.ns("batch/compute_ns")) + known(now.ns("batch/cpu_wait_ns"))
    slept = known(now.ns("batch/device_ns")) + known(now.ns("batch/sleep_ns"))
    read = known(now.ns("io/data_read_ns")) - slept
    freed = known(now.ns("memory/reclaim_ns"))
    return min(1.0, max(0.0, read, freed) / busy) if busy else 0.0


def reads_again(now: Situation) -> bool:
    """Whether memory may have held, and lost, half or more of what a loader reads from storage."""
    waited = known(now.ns(names.LOADER_DEVICE))
    again = SMALLEST_PAGE * known(now.ns("memory/refault_count"))
    # What a server brings, as by FUSE, comes from no block device; refaults may be of other files.
    brought = now.ns("cache/miss_bytes") + sum(known(now.ns(name)) for name in names.BROUGHT)
    if isnan(brought):
        return False
    read = max(known(now.ns("block/read_bytes")), brought)
    return waited >= STORAGE_SHOWS * now.parts.step and 0 < read <= 2 * again


_FETCHED = (names.WAITED_OFF_CPU,)

_CONTENTION = ("sched/thread_runqueue_ns", "sched/worker_runqueue_ns", "sched/others_cpu_ratio")


def _split(now: Situation) -> Candidates:
    """From the wait as it was divided where the batches were made."""
    compute, slept = now.ns(names.LOADER_COMPUTE), now.ns(names.LOADER_SLEEP)
    draw = drawn(now)
    if not now.facts.workers:  # the training thread asks the sampler as it makes them
        compute, slept = compute - draw.cpu, max(0.0, slept - draw.away)
        if are_uneven(now.facts, now.mean):
            compute = slept = nan
    why = asleep.cause_of(now)
    lacked = known(now.ns("sched/wait_runqueue_ns")) if now.facts.workers else 0.0
    # Of the training thread, which made the batches: no more than the rest of the step holds.
    rest = now.parts.step - known(now.ns(names.LOADER))
    collected = 0.0 if now.facts.workers else max(0.0, known(now.ns(names.GARBAGE)) - rest)
    collected = min(collected, known(compute))
    yield from _measured(now, {Cause.STORAGE: names.LOADER_DEVICE})
    yield Candidate(Cause.TRANSFORM, known(compute) - collected, (names.LOADER_COMPUTE,))
    yield Candidate(Cause.GARBAGE, collected, (names.LOADER_COMPUTE, names.GARBAGE))
    locked = 0.0  # of the sleep of a training thread that makes the batches
    if not now.facts.workers and why is not Cause.HELPERS:  # who may compute for it
        locked = min(known(slept), now.parts.loader_interpreter)
    yield Candidate(why, known(slept) - locked, _slept(why))
    yield from _start(now, _theirs(now.ns(names.START), now.ns(names.STARTING_WORKERS)))
    own = fetched(now)
    yield Candidate(Cause.FETCH, own, _FETCHED)
    # Older run logs have sleep in the hand-over; and a worker that computes hands over late.
    most = COMPUTES * known(now.ns(names.HANDOVER))
    made = now.ns("batch/compute_ns")
    made = now.ns(kept.MADE) if isnan(made) else made  # where it is unknown which step got which
    if not isnan(slept) and made < most:
        handed = handed_over(now) - own - kept_by_makers(now)
        yield Candidate(Cause.HANDOVER, max(0.0, handed), (names.HANDOVER,))
    lacked += known(now.ns(names.LOADER_CPU_WAIT))
    yield Candidate(contention(now), lacked, (names.LOADER_CPU_WAIT, *_CONTENTION))
    yield _locked_out(now.parts.loader_interpreter if now.facts.workers else locked)
    yield Candidate(Cause.SAMPLER, sum(draw), ())


def _inferred(now: Situation) -> Candidates:
    """From the scheduler, where the wait is not divided.

    A training thread that waits for its loader leaves no worker idle, so workers spend their time
    on what the wait is for: but for sleep, which from here looks like idleness.
    """
    wait, workers = now.parts.part[VerdictKind.LOADER], now.facts.workers or 0
    who = "worker" if workers else "main"
    share = wait / (workers * now.parts.step) if workers else 1.0
    found = {Cause.STORAGE: "iowait"}
    found |= {contention(now): "runqueue", Cause.WORKERS: "cpu"} if workers else {}
    for cause, what in found.items():
        metric = f"sched/{who}_{what}_ns"
        yield Candidate(cause, min(wait, known(now.ns(metric)) * share), (metric,))
    if workers:
        yield from _start(now, _theirs(now.ns(names.START), now.ns(names.STARTING_WORKERS)))
        yield Candidate(Cause.FETCH, fetched(now), ("sched/main_offcpu_ns",))
        yield _locked_out(now.parts.loader_interpreter)
        return
    # The training thread makes the batches. Of all that it computed and slept, how much must lie
    # in the wait?
    metric, rest = "sched/main_offcpu_ns", now.parts.step - wait
    off, queued = now.ns(metric), known(now.ns("sched/main_runqueue_ns"))
    slept = off - rest - queued
    slept -= known(now.ns("sched/main_iowait_ns")) + stolen(now.mean, now.facts)
    yield Candidate(contention(now), max(0.0, queued - rest), ("sched/main_runqueue_ns",))
    yield Candidate(Cause.TRANSFORM, max(0.0, known(wait - off)), (metric,))
    slept = max(0.0, known(slept))
    why = asleep.cause_of_undivided(now, slept)
    yield Candidate(why, slept, (metric, *asleep.TOLD_BY.get(why, ())))


def _compute(now: Situation) -> tuple[float, Candidates]:
    """What computation lost."""
    parts = now.parts
    return parts.most_lost, iter(
        (
            Candidate(Cause.GARBAGE, known(parts.garbage), (names.GARBAGE,)),
            Candidate(
                _device(now), known(parts.device), ("sched/work_iowait_ns", "io/main_fsync_ns")
            ),
            Candidate(Cause.INTERPRETER, known(parts.interpreter), (names.INTERPRETER,)),
            Candidate(
                contention(now), known(parts.runqueue), ("sched/main_runqueue_ns", *_CONTENTION)
            ),
        )
    )


def _device(now: Situation) -> Cause:
    """Fsync, if it took most of what the training thread slept for a device, and nobody read."""
    synced = known(now.ns("io/main_fsync_ns")) - known(now.ns("io/checkpoint_fsync_ns"))
    only = now.ns("block/read_count") < 1.0  # a step; not so where it is unknown
    is_fsync = only and synced >= COVERAGE * known(now.parts.device) > 0
    return Cause.FSYNC if is_fsync else Cause.STORAGE


def _checkpoint(now: Situation) -> tuple[float, Candidates]:
    """What others sync is none of it, nor what is written for longer than it takes."""
    whole, write = now.parts.part[VerdictKind.CHECKPOINT], "io/checkpoint_write_ns"
    causes = {Cause.FSYNC: "io/main_fsync_ns"}
    causes |= {Cause.WRITE: write} if now.ns(write) <= whole else {}
    return whole, _measured(now, causes)


def _memory(now: Situation) -> tuple[float, Candidates]:
    whole, reclaim = now.parts.part[VerdictKind.MEMORY], "memory/reclaim_ns"
    freed = known(now.ns(reclaim))
    back = Candidate(Cause.FAULTS, whole - freed, ("memory/refault_count",))
    return whole, iter((Candidate(Cause.RECLAIM, freed, (reclaim,)), back))


def _communication(now: Situation) -> tuple[float, Candidates]:
    whole, metric = now.parts.part[VerdictKind.COMMUNICATION], ("ranks/wait_ns",)
    least = min(now.facts.others_wait_ns.values()) if awaited_alone(now) else whole
    return whole, iter((Candidate(Cause.STRAGGLER, whole - least, metric),))


def awaited_alone(now: Situation) -> float:
    """Time for which all others wait for one rank, in a step, and not for the next as well; or 0.

    It is the one that waits least. Where two wait little, as of two groups that go on without each
    other, each may be what its own group waits for.
    """
    others = now.facts.others_wait_ns.values()
    if len(others) < now.facts.world_size - 1:
        return 0.0  # it may be one of those that nobody knows of
    own = known(now.parts.part[VerdictKind.COMMUNICATION])
    least, *more = sorted([own, *others])
    alone = more[0] - least if more and least < own else 0.0
    return alone if alone >= ALONE * now.parts.step else 0.0


def _asleep(now: Situation) -> Candidate:
    """A stop; or processes of this run, if they computed while the training thread slept."""
    slept = now.parts.part[VerdictKind.SLEEP]
    if known(now.ns(names.STOPPED)) >= COVERAGE * slept:
        return Candidate(Cause.STOPPED, slept, (names.STOPPED,))
    if asleep.is_beyond_high(now, slept):
        return Candidate(Cause.HIGH, slept, asleep.TOLD_BY[Cause.HIGH])
    beside = asleep.surely_beside(now, known(now.ns("sched/child_cpu_ns")), now.parts.step - slept)
    cause = Cause.CHILDREN if beside >= COVERAGE * slept else Cause.UNKNOWN
    return Candidate(cause, slept, asleep.TOLD_BY.get(cause, ()))


def _no_cpu(now: Situation) -> tuple[float, Candidates]:
    """Who had the CPUs, where that is known."""
    ns, who = known(now.parts.runqueue), contention(now)
    return ns, iter(() if who is Cause.CPU else (Candidate(who, ns, _CONTENTION),))


def _any_device(now: Situation) -> tuple[float, Candidates]:
    """Fsync or not: no record says what else it was."""
    ns, what = known(now.parts.device), _device(now)
    synced = (Candidate(what, ns, ("io/main_fsync_ns",)),) if what is Cause.FSYNC else ()
    return ns, iter(synced)


def _nothing(now: Situation) -> tuple[float, Candidates]:
    """No record says why a copy takes its time; several costs have no one cause; computing none."""
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
    VerdictKind.VALIDATION: _nothing,
    VerdictKind.MEMORY: _memory,
    VerdictKind.NO_CPU: _no_cpu,
    VerdictKind.DEVICE: _any_device,
    VerdictKind.ON_CPU: _nothing,
    VerdictKind.MIXED: _nothing,
}
"""Kind -> the time in question, and the candidates for it; that of `SLEEP` is always named."""
