"""The rules: from a usual step to a verdict. Every number here is justified in docs/verdicts.md."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from trainobs.core.catalogue import METRICS
from trainobs.verdict import blocks
from trainobs.verdict.advice import advise
from trainobs.verdict.blocks import Blocks, Usual
from trainobs.verdict.causes import Candidate, Situation, find
from trainobs.verdict.costs import Costs, costs_of, known
from trainobs.verdict.verdict import Evidence, Facts, Kind, Verdict

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

OVERHEADS = (Kind.LOADER, Kind.COPY, Kind.COMMUNICATION, Kind.CHECKPOINT)
"""Costs beside computation; what they leave is computation, and the rest."""

HELD_UP = ("sched/main_iowait_ns", "sched/main_runqueue_ns", blocks.GARBAGE)
"""Time within the phases in which nothing was computed."""

METRIC_OF: dict[Kind | None, tuple[str, ...]] = {
    Kind.LOADER: (blocks.LOADER,),
    Kind.COPY: (blocks.TRANSFER,),
    Kind.COMPUTE: blocks.COMPUTE,
    Kind.COMMUNICATION: ("ranks/wait_ns", "sched/main_offcpu_ns", "net/sent_bytes"),
    Kind.CHECKPOINT: (blocks.CHECKPOINT,),
    Kind.MEMORY: ("memory/reclaim_ns", "memory/major_fault_count", "pressure/memory_ns"),
}


def judge(record: Blocks, facts: Facts) -> Verdict:
    """The verdict on the steps of an epoch, or of a run."""
    if len(record) < FEWEST_STEPS:
        return Verdict(
            len(record), abstained_because=f"{FEWEST_STEPS} steps are needed to tell what is usual"
        )
    usual = record.usual()
    costs = costs_of(usual, facts)
    kind, because = _kind(usual, costs)
    now = Situation(usual, costs, facts)
    found = find(kind, now) if kind else None
    time = _time(kind, costs) if kind else None
    return Verdict(
        usual.steps,
        kind,
        found.cause if found else None,
        time,
        time / costs.step if time is not None else None,
        costs.step,
        tuple(_evidence(now, kind, found)),
        advise(kind, found.cause if found else None, now) if kind else None,
        because,
        usual.uneven,
    )


def _kind(usual: Usual, costs: Costs) -> tuple[Kind | None, str | None]:
    """The kind, or why there is none."""
    shares = {kind: known(ns) / costs.step for kind, ns in costs.part.items()}
    top = max(OVERHEADS, key=lambda kind: shares[kind])
    counted = [shares[kind] for kind in OVERHEADS if shares[kind] >= WORTH_TELLING]
    other = costs.other / costs.step
    if why := _does_not_add_up(usual):
        return None, why
    if shares[Kind.MEMORY] >= BOUND:
        return Kind.MEMORY, None
    if other >= BOUND and other > shares[top]:
        return None, _unmarked(usual, other)
    if (
        isnan(costs.part[Kind.MEMORY])
        and known(costs.device) >= max(BOUND, shares[top]) * costs.step
    ):
        return None, "computation waited for a device, and nobody counted major faults"
    if costs.lost >= max(BOUND, shares[top]) * costs.step:
        return Kind.COMPUTE, None  # whatever else it waited for, it lacked its CPU for longer
    if shares[top] >= BOUND:
        return (Kind.MIXED if _has_rival(top, shares) else top), None
    if sum(counted) >= BOUND:
        return Kind.MIXED, None
    if isnan(costs.part[Kind.COMMUNICATION]):
        return None, "the time in collectives was not measured"
    return Kind.COMPUTE, None


def _has_rival(top: Kind, shares: dict[Kind, float]) -> bool:
    least = max(BOUND, RIVAL * shares[top])
    return any(shares[kind] >= least for kind in OVERHEADS if kind is not top)


def _does_not_add_up(usual: Usual) -> str | None:
    """Phases and step come from one clock; a record in which they differ is not to be trusted."""
    if isnan(usual.mean[blocks.STEP]):
        return "the time of the steps was not measured"
    if abs(usual.marked - 1.0) <= ADDS_UP:
        return None
    return f"the phases add up to {usual.marked:.0%} of the step"


def _unmarked(usual: Usual, other: float) -> str:
    names = (blocks.LOADER, blocks.TRANSFER, *blocks.COMPUTE)
    missing = [name.split("/")[1] for name in names if isnan(usual.mean[name])]
    parts = ", ".join(part.removesuffix("_ns") for part in missing)
    told = f"; not marked: {parts.replace('wait', 'loader')}" if missing else ""
    return f"{other:.0%} of the step is in no phase{told}"


def _time(kind: Kind, costs: Costs) -> float:
    """Time of the part that a kind names; of a mixed verdict, that of all costs that count."""
    if kind is not Kind.MIXED:
        return known(costs.part[kind])
    parts = (known(costs.part[kind]) for kind in OVERHEADS)
    return sum(ns for ns in parts if ns >= WORTH_TELLING * costs.step)


def _evidence(now: Situation, kind: Kind | None, found: Candidate | None) -> Iterator[Evidence]:
    """What decided, then what the kind consists of, then what else took time, largest first."""
    deciding = (*METRIC_OF.get(kind, ()), *(found.metrics if found else ()))
    others = sorted((*blocks.PHASES, *HELD_UP), key=lambda name: -known(now.ns(name)))
    for name in dict.fromkeys((*deciding, *others)):
        value = now.ns(name)
        unit = METRICS[name].unit if name in METRICS else "ns"
        share = value / now.costs.step if unit == "ns" else None
        if not isnan(value) and (name in deciding or (share or 0) >= WORTH_SHOWING):
            yield Evidence(name, value, unit, share)
