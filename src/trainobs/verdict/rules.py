"""The rules: from a usual step to a verdict. Every number here is justified in docs/verdicts.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isnan
from typing import NamedTuple

from trainobs.core.catalogue import METRICS
from trainobs.core.text import percent
from trainobs.verdict import blocks
from trainobs.verdict.advice import advise
from trainobs.verdict.blocks import Blocks, Usual
from trainobs.verdict.causes import Candidate, Situation, find
from trainobs.verdict.costs import Costs, costs_of, known
from trainobs.verdict.verdict import Evidence, Facts, Verdict, VerdictKind

BOUND = 0.20
"""Share of the step from which a cost is a bottleneck."""

WORTH_TELLING = 0.10
"""Share of the step from which a cost counts towards a mixed verdict."""

RIVAL = 0.5
"""Share of the largest cost that makes a second bottleneck its equal."""

ADDS_UP = 0.02
"""How far the phases may be from the step that they are parts of."""

FEWEST_STEPS = 8
"""Steps below which nothing is usual."""

WORTH_SHOWING = 0.01
"""Share of the step from which time is in the evidence though it decided nothing."""

OVERHEADS = (
    VerdictKind.LOADER,
    VerdictKind.COPY,
    VerdictKind.COMMUNICATION,
    VerdictKind.CHECKPOINT,
)
"""Costs beside computation; what they leave is computation, and the rest."""

HELD_UP = ("sched/main_iowait_ns", "sched/main_runqueue_ns", blocks.GARBAGE, blocks.INTERPRETER)
"""Time within the phases in which nothing was computed."""

METRIC_OF: dict[VerdictKind | None, tuple[str, ...]] = {
    VerdictKind.LOADER: (blocks.LOADER, *blocks.SPLIT),
    VerdictKind.COPY: (blocks.TRANSFER,),
    VerdictKind.COMPUTE: blocks.COMPUTE,
    VerdictKind.COMMUNICATION: ("ranks/wait_ns", "sched/main_offcpu_ns", "net/sent_bytes"),
    VerdictKind.CHECKPOINT: (blocks.CHECKPOINT,),
    VerdictKind.MEMORY: ("memory/reclaim_ns", "memory/major_fault_count", "pressure/memory_ns"),
}


class StepShares(NamedTuple):
    """What the rules look at, as shares of the step.

    Attributes:
        usual: the step itself.
        part: what each kind is about, 0 where it was not measured.
        top: the largest of `OVERHEADS`.
        most: its share.
        other: time in no phase.
        lost: time in which the training thread was held up outside loader and checkpoints.
        device: the part of `lost` in which it slept for a device.
        pressure: time in which some task of the machine waited for memory.
        unknown: kinds whose part was not measured.
    """

    usual: Usual
    part: Mapping[VerdictKind, float]
    top: VerdictKind
    most: float
    other: float
    lost: float
    device: float
    pressure: float
    unknown: frozenset[VerdictKind]


def judge(record: Blocks, facts: Facts) -> Verdict:
    """The verdict on the steps of an epoch, or of a run."""
    if len(record) < FEWEST_STEPS:
        return Verdict(len(record), abstained_because=f"fewer than {FEWEST_STEPS} steps")
    usual = record.usual()
    costs = costs_of(usual, facts)
    shares = _shares(usual, costs)
    outcome = _outcome(shares)
    now = Situation(usual, costs, facts)
    if isinstance(outcome, str):
        evidence = tuple(_evidence(now, None, None))
        return Verdict(usual.steps, evidence=evidence, abstained_because=outcome)
    found = find(outcome, now)
    cause = found.cause if found else None
    time = _time(outcome, costs)
    return Verdict(
        usual.steps,
        outcome,
        cause,
        time,
        time / costs.step,
        costs.step,
        tuple(_evidence(now, outcome, found)),
        advise(outcome, cause, now),
        uneven=usual.uneven,
    )


def _outcome(s: StepShares) -> VerdictKind | str:
    """The verdict, or why there is none: the first condition that holds decides."""
    if isnan(s.usual.mean[blocks.STEP]):
        return "the steps were not timed"
    if abs(s.usual.marked - 1.0) > ADDS_UP:
        return f"the phases add up to {percent(s.usual.marked)} of the step"
    if s.part[VerdictKind.MEMORY] >= BOUND:
        return VerdictKind.MEMORY
    is_memory_unknown, least = VerdictKind.MEMORY in s.unknown, max(BOUND, s.most)
    if is_memory_unknown and s.pressure >= least:
        return "the machine was short of memory, and nobody counted what this run had to free"
    if s.other >= BOUND and s.other > s.most:
        return _unmarked(s)
    if is_memory_unknown and s.device >= least:
        return "computation waited for a device, and nobody counted major faults"
    if s.lost >= least:  # whatever else the training thread waited for, it lacked its CPU longer
        return VerdictKind.COMPUTE
    if s.most >= BOUND:
        return VerdictKind.MIXED if _has_rival(s) else s.top
    if _worth_telling(s) >= BOUND:
        return VerdictKind.MIXED
    if VerdictKind.COMMUNICATION in s.unknown:
        return "the time in collectives was not measured"
    return VerdictKind.COMPUTE


def _shares(usual: Usual, costs: Costs) -> StepShares:
    part = {kind: known(ns) / costs.step for kind, ns in costs.part.items()}
    top = max(OVERHEADS, key=lambda kind: part[kind])
    return StepShares(
        usual,
        part,
        top,
        part[top],
        costs.other / costs.step,
        costs.lost / costs.step,
        known(costs.device) / costs.step,
        known(usual.mean["pressure/memory_ns"]) / costs.step,
        frozenset(kind for kind, ns in costs.part.items() if isnan(ns)),
    )


def _has_rival(shares: StepShares) -> bool:
    """Whether a second cost is a bottleneck of its own, and about as large as the first."""
    least = max(BOUND, RIVAL * shares.most)
    return any(shares.part[kind] >= least for kind in OVERHEADS if kind is not shares.top)


def _worth_telling(shares: StepShares) -> float:
    """Costs that are no bottleneck alone, together."""
    parts = (shares.part[kind] for kind in OVERHEADS)
    return sum(part for part in parts if part >= WORTH_TELLING)


def _unmarked(shares: StepShares) -> str:
    names = (blocks.LOADER, blocks.TRANSFER, *blocks.COMPUTE)
    missing = [name for name in names if isnan(shares.usual.mean[name])]
    words = ", ".join("loader" if n == blocks.LOADER else n[6:-3] for n in missing)
    told = f"; not marked: {words}" if missing else ""
    where = (
        "in no phase" if not known(shares.usual.mean[blocks.LOGGING]) else "in no phase or logging"
    )
    return f"{percent(shares.other)} of the step is {where}{told}"


def _time(kind: VerdictKind, costs: Costs) -> float:
    """Time of the part that a kind names; of a mixed verdict, that of all costs that count."""
    if kind is not VerdictKind.MIXED:
        return known(costs.part[kind])
    parts = (known(costs.part[kind]) for kind in OVERHEADS)
    return sum(ns for ns in parts if ns >= WORTH_TELLING * costs.step)


def _evidence(
    now: Situation, kind: VerdictKind | None, found: Candidate | None
) -> Iterator[Evidence]:
    """What decided, then what the kind consists of, then what else took time, largest first."""
    deciding = (*METRIC_OF.get(kind, ()), *(found.metrics if found else ()))
    others = sorted((*blocks.PHASES, *HELD_UP), key=lambda name: -known(now.ns(name)))
    for name in dict.fromkeys((*deciding, *others)):
        value = now.ns(name)
        unit = METRICS[name].unit if name in METRICS else "ns"
        share = value / now.costs.step if unit == "ns" else None
        if not isnan(value) and (name in deciding or (share or 0) >= WORTH_SHOWING):
            yield Evidence(name, value, unit, share)
