"""The numbers behind a verdict: which of them, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trainobs.core.catalogue import METRICS
from trainobs.core.catalogue.named import named_phase
from trainobs.verdict import metric_names as names
from trainobs.verdict.causes import Candidate
from trainobs.verdict.parts import Situation, known
from trainobs.verdict.verdict import Evidence, VerdictKind

WORTH_SHOWING = 0.01
"""Share of the step from which time is in the evidence though it decided nothing."""

HELD_UP = ("sched/work_runqueue_ns", "sched/work_iowait_ns", names.GARBAGE, names.INTERPRETER)
"""Time within the phases in which nothing was computed."""

OFF_CPU = ("sched/main_offcpu_ns", "sched/main_runqueue_ns", "sched/main_iowait_ns")
"""The same of all phases: for a verdict on steps of which none is known."""

_METRICS_OF: Mapping[VerdictKind, tuple[str, ...]] = {
    VerdictKind.LOADER: (names.LOADER,),
    VerdictKind.COPY: (names.TRANSFER,),
    VerdictKind.COMPUTE: names.COMPUTE,
    VerdictKind.COMMUNICATION: ("ranks/wait_ns",),
    VerdictKind.CHECKPOINT: (names.CHECKPOINT,),
    VerdictKind.VALIDATION: (names.VALIDATION,),
    VerdictKind.MEMORY: ("memory/reclaim_ns", "memory/refault_count"),
    VerdictKind.SLEEP: names.SLEEPS,
    VerdictKind.NO_CPU: ("sched/main_runqueue_ns",),
    VerdictKind.DEVICE: ("sched/main_iowait_ns",),
}

_PARTS_OF: Mapping[VerdictKind, tuple[str, ...]] = {
    VerdictKind.LOADER: (*names.SPLIT, names.START),
    VerdictKind.COMMUNICATION: ("net/sent_bytes",),
    VerdictKind.SLEEP: ("net/sent_bytes", "net/received_bytes"),
    VerdictKind.MEMORY: ("memory/major_fault_count",),
}


def metrics_of(kind: VerdictKind) -> tuple[str, ...]:
    """The metrics that a kind of verdict is about."""
    return _METRICS_OF.get(kind, ())


def evidence(
    now: Situation, kinds: Sequence[VerdictKind], found: Candidate | None
) -> Iterator[Evidence]:
    """What decided, then what the kind consists of, then what else took time, largest first.

    Args:
        now: the steps.
        kinds: of the verdict; of a mixed one its costs.
        found: the cause that it names.
    """
    of_kind = [name for one in kinds for name in metrics_of(one)]
    of_kind += [name for one in kinds for name in _PARTS_OF.get(one, ())]
    deciding = (*of_kind, *(found.metrics if found else ()))
    named = [name for name in now.mean if named_phase(name)]
    phases = (*(name for name in names.PHASES if name != names.NAMED), *named)
    times = [*phases, *HELD_UP, *names.SLEEPS, names.STOPPED]
    times += [names.AWAITED] if VerdictKind.SLEEP in kinds else []
    times += OFF_CPU if not now.knows_phases else []
    others = sorted(times, key=lambda name: -known(now.ns(name)))
    taken_over = now.ns(names.LOADER) - now.parts.part[VerdictKind.LOADER]
    for name in dict.fromkeys((*deciding, *others)):
        value = now.ns(name)
        if name in (names.LOADER, names.HANDOVER):  # taking batches over is a part of its own
            value = max(0.0, value - taken_over)
        if name == names.HANDOVER:  # and so is what loaders take to start and to end
            value = max(0.0, value - known(now.ns(names.START)))
        unit = METRICS[name].unit if name in METRICS else "ns"
        is_share = unit == "ns" and (name in _OF_THE_THREAD or name in named)
        share = value / now.parts.step if is_share else None
        if value > 0 and (name in deciding or (share or 0) >= WORTH_SHOWING):
            yield Evidence(name, value, unit, None if share is None else min(1.0, share))


_OF_THE_THREAD = {
    *names.PHASES,
    *names.SPLIT,
    *names.SLEEPS,
    names.STOPPED,
    *HELD_UP,
    names.START,
    names.STARTING_WORKERS,
    *OFF_CPU,
    names.AWAITED,
    names.WAITED_OFF_CPU,
    "ranks/wait_ns",
}
"""Times of the training thread, which are parts of the step; others are sums over threads."""
