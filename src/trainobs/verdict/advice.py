"""The change that is predicted to help most, where one is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf, isnan, sqrt
from typing import TypeVar

from trainobs.core.text import gained
from trainobs.replay.changes import MOST_WORKERS, Change
from trainobs.replay.predict import Replay
from trainobs.replay.workers import HAND_NS_PER_BYTE
from trainobs.verdict import metric_names as names
from trainobs.verdict.causes import awaited_alone, kernels_share
from trainobs.verdict.cpus import (
    contention,
    free_cpus,
    knows_quota,
    lacked_share,
    taken_by_others,
    within_quota,
)
from trainobs.verdict.facts import Facts
from trainobs.verdict.handover import handed_over
from trainobs.verdict.parts import BOUND, Situation, known
from trainobs.verdict.verdict import Advice, Cause, VerdictKind

LEAST = 1.05
"""Speed-up from which on a change is worth advice: both ends of its prediction."""

LEAST_OF_SETTING = 1.0
"""The same of a setting, which is tried in a minute, where the middle is `MIDDLE` or more."""

MIDDLE = 1.25
"""Speed-up whose square is the product of both ends."""

ABOUT = 0.97
"""Share of the best gain with which fewer workers are as good."""

SETTINGS = {"workers", "persistent", "prefetch"}
"""Changes of one argument, which come before work that does not surely bring more."""

PART = 0.5
"""Share of a cost that a change which cannot take all of it away is sure to."""

KERNELS = 1 / 3
"""Share of what the loader computes that is the kernel's work, from which on to halve it is no
advice: it cannot be had from transforms alone, and there may be none."""

MEMORY = 0.5
"""Share of a rank's memory that its workers may have."""

MANY_TENSORS = 8
"""Tensors in a batch from which on there are fewer to make of them."""

MOST_TENSOR_NS = 1e6
"""What handing a tensor over is taken to cost at most, beside what its bytes may (140 to 450 us, on
a busy machine): these are as many in fewer tensors."""

MADE_ONCE = (
    "make the loader once, before the loop, with persistent_workers=True, "
    "if its data stays the same"
)
"""For workers to live on, their loader has to. Whether it could is not known: each may have had
other data of the same length, as in active learning."""

_Found = Iterator[Advice]
_One = TypeVar("_One")


def advise(
    kind: VerdictKind, cause: Cause | None, now: Situation, taken_by: Cause | None = None
) -> Advice | None:
    """Of the changes that fit a verdict and surely help, the first `in_order`.

    Args:
        kind: of the verdict.
        cause: of the verdict.
        now: the situation.
        taken_by: who had the CPUs that were lacking, beside the cause.
    """
    found = list(_replayed(kind, cause, now, taken_by))
    replayed = {name for advice in found for name in advice.change}
    found += [one for one in _by_share(kind, cause, now) if not replayed & one.change.keys()]
    if cause is Cause.HANDOVER:
        found += _fewer_tensors(now)
    worth = [advice for advice in found if is_worth(advice.change, advice.gain)]
    return next(iter(in_order(worth, lambda one: one.change, lambda one: one.gain)), None)


def is_worth(change: Iterable[str], gain: Sequence[float | None]) -> bool:
    """Whether a change, by its names, is worth advice for the least and the most it may gain."""
    least, most = gain[0] or 0.0, gain[1]
    if least >= LEAST:
        return True
    may = most is not None and least >= LEAST_OF_SETTING and sqrt(least * most) >= MIDDLE
    return may and not SETTINGS.isdisjoint(change)


def in_order(
    found: Iterable[_One],
    change: Callable[[_One], Iterable[str]],
    gain: Callable[[_One], Sequence[float | None]],
) -> list[_One]:
    """Changes by the gain that is certain, the largest first.

    A setting of the loader comes before work on the code that does not surely bring more than the
    setting may: it is tried in a minute.

    Args:
        found: any number of changes.
        change: of one, its names.
        gain: of one, the least and the most, None for unknown.
    """

    def least(one: _One) -> float:
        return gain(one)[0] or 0.0

    def is_setting(one: _One) -> bool:
        return not SETTINGS.isdisjoint(change(one))

    falling = sorted(found, key=least, reverse=True)
    ordered, place = [one for one in falling if not is_setting(one)], 0
    for setting in filter(is_setting, falling):
        most = gain(setting)[1] or inf
        while place < len(ordered) and least(ordered[place]) > most:
            place += 1
        ordered.insert(place, setting)
        place += 1
    return ordered


def told(advice: Advice) -> str:
    """Advice with its gain, in words; only a replay tells the most that it may be."""
    by = "by its share of the time" if advice.gain[1] is None else "predicted"
    return f"{advice.text}: {gained(*advice.gain)} ({by})"


def _replayed(
    kind: VerdictKind, cause: Cause | None, now: Situation, taken_by: Cause | None = None
) -> _Found:
    replay = now.replay
    if replay is None:
        return
    if kind is VerdictKind.LOADER:
        yield from _workers(replay, now)
        if now.facts.may_keep_workers:
            text = MADE_ONCE if now.facts.has_new_loaders else "persistent_workers=True"
            yield from _try(replay, Change("persistent", 0.0), text)
        if cause is Cause.STORAGE:
            # Not "keep it in memory": who reads each file once reads it from the device.
            yield from _try(replay, Change("device", 2.0), "storage twice as fast")
        elif cause is Cause.TRANSFORM and kernels_share(now) < KERNELS:
            yield from _try(replay, Change("transform", 0.5), "half the CPU time of making a batch")
        elif cause is Cause.SAMPLER:
            yield from _try(replay, Change("sampler", 0.5), "half the time in the sampler")
    elif kind is VerdictKind.CHECKPOINT:
        yield from _try(replay, Change("checkpoint", 0.5), "save half as often")
    elif kind is VerdictKind.VALIDATION:
        yield from _try(replay, Change("validation", 0.5), "validate half as often")
    cpus = now.facts.usable_cpus if now.facts.most_cpus is None else None
    if Cause.OTHERS in (cause, taken_by) and cpus:
        yield from _try(replay, Change("cpus", cpus), "give this run CPUs of its own")
    if Cause.QUOTA in (cause, taken_by) and cpus and knows_quota(now):
        more = min(2 * cpus, now.facts.all_cpus or 2 * cpus)
        yield from _try(replay, Change("cpus", more), f"a CPU quota of {more:g}")
    more = min(2 * (cpus or inf), now.facts.machine_cpus or 0.0)
    if cpus and more > cpus and lacked_share(now) >= BOUND and contention(now) is Cause.FULL:
        yield from _try(replay, Change("cpus", more), f"{more:g} CPUs for this run")


def _try(replay: Replay, change: Change, text: str) -> _Found:
    if replay.can_try(change.name):
        value = True if str(change) == change.name else change.value
        yield Advice(text, replay.predict([change]).gain, {change.name: value})


def _workers(replay: Replay, now: Situation) -> _Found:
    """None; and the fewest more that gain about the most, never more than CPUs that are free."""
    facts, free = now.facts, free_cpus(now)
    if facts.workers is None:
        return
    if facts.workers:
        # torch takes the two together for an error
        alone = " without persistent_workers" if facts.has_persistent_workers else ""
        yield from _try(replay, Change("workers", 0), f"num_workers=0{alone}")
    if free is None or isnan(taken_by_others(now)):
        return
    room = int(within_quota(now, free) + 0.5)
    room = min(room, workers_in_memory(facts, now.ns("memory/worker_rss_bytes")))
    more = (count for count in _counts(room) if count > facts.workers)
    better = [one for n in more for one in _try(replay, Change("workers", n), f"num_workers={n}")]
    best = max((advice.gain[0] for advice in better), default=0.0)
    yield from [advice for advice in better if advice.gain[0] >= ABOUT * best][:1]


def workers_in_memory(facts: Facts, resident: float) -> int:
    """Workers that fit into the memory of this rank, as large as they are now.

    Pages that they share count in each of them, so that these are too few rather than too many.

    Args:
        facts: of the run.
        resident: bytes that all its workers have in memory; NaN for unknown.
    """
    if not facts.workers or facts.memory_bytes is None or not known(resident):
        return MOST_WORKERS
    return int(MEMORY * facts.memory_bytes / (resident / facts.workers))


def _counts(room: int) -> list[int]:
    """All small numbers of workers, and of large ones some."""
    powers = [2**power for power in range(4, 10)]
    return [*range(1, min(room, 8) + 1), *(n for n in powers if n <= room)]


def _by_share(kind: VerdictKind, cause: Cause | None, now: Situation) -> _Found:
    """What takes a known share of all steps: it is gone, or part of it is."""
    rule = _SHARES.get((kind, cause)) or _SHARES.get((kind, None))
    if rule is None:
        return
    text, change, of, least = rule
    share = min(0.99, max(0.0, of(now)) / now.parts.step)
    if waits := now.facts.others_wait_ns:
        text = text.format(least=min(waits, key=lambda rank: waits[rank]))
    yield Advice(text, (1 / (1 - least * share), None), dict(change))


def _fewer_tensors(now: Situation) -> _Found:
    """Each is handed over by itself, whatever its size: a socket, a descriptor, a mapping."""
    tensors, size = now.facts.tensors or 0, now.ns("batch/handed_bytes")
    if tensors < MANY_TENSORS or isnan(size):
        return
    most = MOST_TENSOR_NS * tensors * now.batches
    handed = min(handed_over(now), most) - HAND_NS_PER_BYTE[1] * size
    share = min(0.99, max(0.0, handed) / now.parts.step)
    text = f"put what is in the {tensors} tensors of a batch into a few"
    yield Advice(text, (1 / (1 - PART * share), None), {"tensors_per_batch": 1})


def _part(kind: VerdictKind) -> Callable[[Situation], float]:
    return lambda now: known(now.parts.part[kind])


def _beyond_high(now: Situation) -> float:
    return min(known(now.ns("memory/stalled_ns")), known(now.parts.part[VerdictKind.LOADER]))


def _of_threads(now: Situation) -> float:
    """What is saved without their Python, even if that makes the batches: these take its time."""
    left = now.parts.step - known(now.ns("sched/thread_cpu_ns"))
    waited = known(now.parts.interpreter) + now.parts.loader_interpreter
    return min(waited, max(0.0, left))


_Rule = tuple[str, tuple[tuple[str, float | bool], ...], Callable[[Situation], float], float]

_COLLECTS: _Rule = (
    "gc.freeze() after the set-up, and collect no more than once in some hundred steps",
    (("gc", False),),
    lambda now: known(now.ns(names.GARBAGE)),
    PART,
)

_THREADS: _Rule = (
    "move what the other threads do in Python into a process, or end these threads",
    (("python_threads", 0),),
    _of_threads,
    PART,
)

_MORE_MEMORY, _MEMORY = "give the run more memory, or let it hold less", (("memory", True),)

_SHARES: dict[tuple[VerdictKind, Cause | None], _Rule] = {
    (VerdictKind.LOADER, Cause.GARBAGE): _COLLECTS,
    (VerdictKind.COMPUTE, Cause.GARBAGE): _COLLECTS,
    (VerdictKind.LOADER, Cause.INTERPRETER): _THREADS,
    (VerdictKind.COMPUTE, Cause.INTERPRETER): _THREADS,
    (VerdictKind.CHECKPOINT, None): (
        "save half as often",
        (("checkpoint", 0.5),),
        _part(VerdictKind.CHECKPOINT),
        0.25,
    ),
    (VerdictKind.VALIDATION, None): (
        "validate half as often",
        (("validation", 0.5),),
        _part(VerdictKind.VALIDATION),
        0.4,
    ),
    (VerdictKind.MEMORY, None): (_MORE_MEMORY, _MEMORY, _part(VerdictKind.MEMORY), PART),
    (VerdictKind.SLEEP, Cause.HIGH): (_MORE_MEMORY, _MEMORY, _part(VerdictKind.SLEEP), PART),
    (VerdictKind.LOADER, Cause.HIGH): (_MORE_MEMORY, _MEMORY, _beyond_high, PART),
    (VerdictKind.COMMUNICATION, Cause.STRAGGLER): (
        "look at rank {least}, which waits least (`report --rank {least}`): if it were as fast as "
        "the others",
        (("straggler", False),),
        awaited_alone,
        PART,
    ),
}
"""Verdict -> what to do, the same for programs, the time it is about, and how much of that goes at
least: what the time was lost to slows down more than it is seen in."""
