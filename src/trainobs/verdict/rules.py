"""The rules: from the steps to a verdict. Every number here is justified in docs/verdicts.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf, isnan

from trainobs.core.catalogue.named import named_phase
from trainobs.core.text import percent
from trainobs.replay.predict import Replay
from trainobs.verdict import metric_names as names
from trainobs.verdict.advice import KERNELS, advise
from trainobs.verdict.asleep import used_in_wait, why_kept
from trainobs.verdict.causes import find, kernels_share, reads_again
from trainobs.verdict.cpus import contention, is_full, lacked_share
from trainobs.verdict.evenness import UnevenTime, in_some_steps, once, when
from trainobs.verdict.evidence import WORTH_SHOWING, evidence, metrics_of
from trainobs.verdict.facts import Facts
from trainobs.verdict.parts import (
    BOUND,
    HOLDS,
    OVERHEADS,
    RIVAL_COST,
    Situation,
    StepParts,
    known,
    parts_of,
)
from trainobs.verdict.replayable import FEWEST_STEPS, replay_of
from trainobs.verdict.summed_steps import SummedSteps
from trainobs.verdict.unphased import outcome_of
from trainobs.verdict.verdict import Cause, Outcome, Verdict, VerdictKind, abstained

GPU_FULL = 0.8
"""Share of the step in which the GPU is in a phase, from which on what the host waits for may cost
nothing."""

SIBLINGS = 0.05
"""Share of the CPUs from which on it is told that it is the same job that takes them."""

ADDS_UP = 0.02
"""How far the phases may be from the step that they are parts of."""

_NOT_DONE = ("sched/work_runqueue_ns", names.GARBAGE, names.INTERPRETER, names.OTHER_SLEEP)
"""Time outside the phases that is known for something else than what the loop does there. Waiting
for a device is not: a checkpoint that nobody marks does, and the kernel tells no phase of it."""

_RARE = "in no phase, as for a validation, a checkpoint or an optimizer that steps then"

_NOT_MARKED = ": code of the loop, or of a callback, that nobody marks"

_MOST_OF_IT = 0.8
"""Share of the sleep that a phase has to hold before it is named."""

_SYNCS = 0.5
"""Share of the logging phase from which on the time inside fsync is told beside it."""

_OF_THE_HOST = (VerdictKind.LOADER, VerdictKind.COPY, VerdictKind.SLEEP)
"""Costs that a GPU may hide, which goes on meanwhile."""

_COMPUTING = (*names.COMPUTE, names.NAMED, names.OTHER)

_TIMES_OF: Mapping[Cause | None, tuple[str, ...]] = {
    Cause.GARBAGE: (names.GARBAGE,),
    Cause.INTERPRETER: (names.INTERPRETER,),
    Cause.STORAGE: ("sched/work_iowait_ns",),
    Cause.FSYNC: ("sched/work_iowait_ns",),
}
"""Where the time lies that held computation up; else it is the run queue."""

_RUNQUEUE = ("sched/work_runqueue_ns",)

_IDLE = ("sched/work_offcpu_ns",)
"""Where the wait for threads that do nothing lies, of which no metric tells by itself."""


def judge(summed: SummedSteps, facts: Facts, *, replays: bool = True) -> Verdict:
    """The verdict on the steps of an epoch, or of a run.

    Args:
        summed: the steps.
        facts: what it does not hold.
        replays: whether to replay it, which takes some 0.3 s of CPU time, for causes and advice.
    """
    return judge_by(replay_of(summed, facts) if replays else None, summed, facts)


def judge_by(replay: Replay | None, summed: SummedSteps, facts: Facts) -> Verdict:
    """The same with the replay of these steps at hand; None: without one."""
    if len(summed) < FEWEST_STEPS:
        return Verdict(
            len(summed), abstained_because=f"fewer than {FEWEST_STEPS} steps after the first"
        )
    mean = summed.mean()
    if isnan(mean[names.STEP]):
        return Verdict(len(summed), abstained_because="the steps were not timed")
    parts = parts_of(mean, facts)
    now = Situation(mean, parts, facts, None if replay is None or replay.refused else replay)
    outcome = _outcome(summed, now)
    if outcome.kind is None:
        return Verdict(
            len(summed),
            step_ns=parts.step,
            knows_phases=now.knows_phases,
            evidence=tuple(evidence(now, (), None)),
            abstained_because=outcome.abstained_because,
        )
    found = _verdict(outcome.kind, outcome.ns, summed, now)
    return replace(found, replayed=None if replay is None else not replay.refused)


def _verdict(kind: VerdictKind, ns: float, summed: SummedSteps, now: Situation) -> Verdict:
    """The kind, and the time that it is about, with all that there is to say of them."""
    parts, facts = now.parts, now.facts
    held_up = kind is VerdictKind.COMPUTE and parts.lost >= BOUND * parts.step
    found = find(kind, now) if held_up or kind is not VerdictKind.COMPUTE else None
    cause = found.cause if found else None
    if held_up and found:  # `lost` has what others cost, too
        ns = min(ns, found.ns)
    taken_by, lacked = _taken_by(now, cause)
    by_others = Cause.OTHERS in (cause, taken_by) and facts.siblings_cpu_ratio >= SIBLINGS
    costs = _costs(now) if kind is VerdictKind.MIXED else ()
    times = _times(kind, cause, parts, held_up=held_up)
    came_once = bool(times) and once(summed, times) != ""  # nobody knows that it comes again
    return Verdict(
        len(summed),
        kind,
        cause,
        ns,
        min(1.0, ns / parts.step),
        parts.step,
        costs=costs,
        held_up=held_up,
        when=_when(summed, kind, times, held_up=held_up),
        where=_where(kind, now),
        is_least=kind is VerdictKind.SLEEP and not parts.sees_sleep,
        cpu_taken_by=taken_by,
        cpu_lacked_share=lacked,
        polled_share=parts.polled / parts.step,
        siblings=facts.siblings if by_others else 0,
        siblings_cpu_ratio=facts.siblings_cpu_ratio if by_others else 0.0,
        kernel_may_compute=cause is Cause.TRANSFORM and kernels_share(now) >= KERNELS,
        may_be_read_again=kind is VerdictKind.LOADER and reads_again(now),
        memory_limit_bytes=facts.memory_limit_bytes,
        knows_phases=now.knows_phases,
        evidence=tuple(evidence(now, costs or (kind,), found)),
        advice=None if came_once else advise(kind, cause, now, taken_by),
    )


def _outcome(summed: SummedSteps, now: Situation) -> Outcome:
    """The verdict and the time that it is about; or why there is none."""
    parts, part = now.parts, now.parts.part
    if why := why_kept(now.mean):
        return abstained(why)
    if not now.knows_phases:
        return outcome_of(now)
    marked = sum(known(now.ns(name)) for name in names.PHASES) / parts.step
    if abs(marked - 1.0) > ADDS_UP:
        return abstained(f"the phases add up to {percent(marked)} of the step")
    costs = {kind: parts.least(kind) for kind in OVERHEADS}
    top = max(costs, key=lambda kind: costs[kind])
    most, lost = costs[top], parts.lost
    rival = max(BOUND * parts.step, most)  # that anything else has to come up to
    if isnan(part[VerdictKind.MEMORY]) and known(parts.device) >= rival:
        return abstained(
            "computation waited for a device, and nobody knows whether for want of memory"
        )
    is_computation = _is_computation(now)
    uneven = UnevenTime(0.0, "")
    if is_computation:
        uneven = in_some_steps(summed, (names.OTHER,), _NOT_DONE)
    not_done = max(0.0, lost - known(parts.device)) + known(parts.asleep["other"])
    other = max(0.0, parts.other - not_done)
    unmarked = 0.0 if is_computation else other
    if lost >= max(rival, uneven.ns, unmarked, known(parts.unexplained)):
        return Outcome(VerdictKind.COMPUTE, lost)
    if unmarked >= rival:
        return abstained(_unmarked(now, parts.other))
    if why := _why_unseen(now, top, most):
        return abstained(why)
    if uneven.ns >= rival:
        share, where = percent(uneven.ns / parts.step), uneven.where
        return abstained(f"{share} of all time is what the loop takes longer {where}, {_RARE}")
    if most >= BOUND * parts.step:
        return _of_costs(top, costs, now)
    if isnan(part[VerdictKind.COMMUNICATION]):
        return abstained("the time in collectives was not measured")
    computing = known(part[VerdictKind.COMPUTE])
    if isnan(now.ns("sched/main_offcpu_ns")):
        return abstained(_uncounted(now))
    return Outcome(VerdictKind.COMPUTE, computing + (other if is_computation else 0.0))


def _of_costs(top: VerdictKind, costs: Mapping[VerdictKind, float], now: Situation) -> Outcome:
    """The largest cost, or several that stand beside it, unless a GPU may hide it."""
    parts, part = now.parts, now.parts.part
    on_gpu = sum(known(now.ns(name)) for name in names.ON_GPU) / parts.step
    if top in _OF_THE_HOST and on_gpu >= GPU_FULL:
        share = percent(min(1.0, on_gpu))
        return abstained(
            f"the GPU is in forward, backward, optimizer or transfer for {share} of the step, so "
            "that what the host waits for may cost nothing"
        )
    second = max(ns for kind, ns in costs.items() if kind is not top)
    if second < max(BOUND * parts.step, RIVAL_COST * costs[top]):
        return Outcome(top, part[top])
    together = sum(part[kind] for kind in _costs(now))
    return Outcome(VerdictKind.MIXED, min(parts.step, together))


def _why_unseen(now: Situation, top: VerdictKind, most: float) -> str:
    """Why the largest cost may be none, or another one larger, where no probe tells; or ""."""
    parts, wait = now.parts, known(now.parts.part[VerdictKind.LOADER])
    is_asleep = top is VerdictKind.SLEEP and most >= BOUND * parts.step
    slept = known(parts.unexplained)
    if slept >= max(BOUND * parts.step, most) and not is_asleep:
        share = percent(min(1.0, slept / parts.step))
        return f"for {share} of the step the training thread is off the CPU, and nobody knows why"
    is_seen = not isnan(now.ns(names.INTERPRETER)) or not isnan(now.ns(names.LOADER_DEVICE))
    # Who waits for that lock is off the CPU.
    off = now.ns("sched/main_offcpu_ns") - known(now.ns("sched/main_runqueue_ns"))
    beside = 0.0 if is_seen else min(used_in_wait(now), inf if isnan(off) else off)
    if top is VerdictKind.LOADER and BOUND * parts.step <= wait <= beside / HOLDS:
        return (
            "the training thread waits for data while other threads of its process compute, which "
            "may keep the interpreter's lock from it"
        )
    return ""


def _uncounted(now: Situation) -> str:
    """Why there is no verdict where nobody tells how long the training thread was on a CPU."""
    wait = now.ns(names.LOADER)
    if isnan(wait):
        return "nobody knows how much of the step is computation"
    share = percent(max(0.0, 1.0 - wait / now.parts.step))
    return f"{share} of the step is no wait for data; how much of it is computation, nobody knows"


def _is_computation(now: Situation) -> bool:
    """Whether what is in no phase is the step's computation.

    It is in a loop that marks no phases, if it writes nothing to speak of, as a checkpoint would.
    """
    writing = known(now.ns("io/fsync_ns")) + known(now.ns("io/checkpoint_write_ns"))
    # An optimizer that was found in a loop marks itself.
    unmarked = all(isnan(now.ns(name)) for name in names.COMPUTE if name != names.OPTIMIZER)
    is_seen = not isnan(now.ns("sched/main_offcpu_ns"))
    return unmarked and is_seen and writing < 0.05 * now.parts.step


def _times(
    kind: VerdictKind, cause: Cause | None, parts: StepParts, *, held_up: bool
) -> tuple[str, ...]:
    """The times that a verdict is about."""
    if kind is VerdictKind.SLEEP and parts.idle > parts.part[kind] / 2:
        return _IDLE
    if kind is VerdictKind.COMPUTE:
        return _TIMES_OF.get(cause, _RUNQUEUE) if held_up else _COMPUTING
    return metrics_of(kind)


def _when(summed: SummedSteps, kind: VerdictKind, times: tuple[str, ...], *, held_up: bool) -> str:
    """Checkpoints and validation come now and then, and nobody has to be told."""
    if kind in (VerdictKind.CHECKPOINT, VerdictKind.VALIDATION, VerdictKind.MIXED) or not times:
        return ""
    told = when(summed, times)
    goes_on = kind is VerdictKind.COMPUTE and not held_up  # what was the longest at first
    return "" if goes_on and "until" in told else told


def _taken_by(now: Situation, cause: Cause | None) -> tuple[Cause | None, float]:
    """Who had the CPUs that were lacking, beside the cause; and the share of the step."""
    share, who = lacked_share(now), contention(now)
    is_sure = who is Cause.QUOTA or (who is Cause.OTHERS and is_full(now))
    return (who if is_sure and share >= BOUND and who is not cause else None), share


def _where(kind: VerdictKind, now: Situation) -> str:
    """The phase in which most of the sleep lies."""
    parts = now.parts
    if kind is not VerdictKind.SLEEP:
        return ""
    in_step = [(phase, known(ns)) for phase, ns in parts.asleep.items() if phase != "transfer"]
    phase, ns = max(in_step, key=lambda item: item[1])
    if ns < parts.idle:  # most of it lies in no phase that is known
        return ""
    most = _MOST_OF_IT * parts.part[kind]
    if phase == "other" and known(now.ns(names.NAMED)) + known(now.ns(names.LOGGING)):
        phase = _named(now, ns, most)
    return phase if ns >= most else ""


def _named(now: Situation, slept: float, most: float) -> str:
    """The phase in which most of the sleep surely lies: logging, or one of the user's.

    The kernel does not tell these apart, nor from what is in no phase. Surely: the time outside of
    that phase is too short for the rest of the sleep.
    """
    times = {phase: now.ns(name) for name in now.mean if (phase := named_phase(name))}
    times["logging"] = now.ns(names.LOGGING)
    outside = known(now.ns(names.OTHER)) + sum(map(known, times.values()))
    sure = [phase for phase, ns in times.items() if slept - (outside - known(ns)) >= most]
    return sure[0] if sure else "named"


def _costs(now: Situation) -> tuple[VerdictKind, ...]:
    """The costs that are bottlenecks, the largest first."""
    found = [kind for kind in OVERHEADS if now.parts.least(kind) >= BOUND * now.parts.step]
    return tuple(sorted(found, key=lambda kind: -now.parts.part[kind]))


def _unmarked(now: Situation, other: float) -> str:
    """Why there is no verdict where `other` is in no phase, or in logging, which somebody marks."""
    step, logging = now.parts.step, known(now.ns(names.LOGGING))
    rest = max(0.0, other - logging)
    if logging >= _MOST_OF_IT * other:
        synced = known(now.ns("io/main_fsync_ns")) - known(now.ns("io/checkpoint_fsync_ns"))
        told = f"{percent(min(1.0, logging / step))} of the step is in the logging phase"
        # No record says in which phase it was: it is told beside the phase, not as a part of it.
        fsync = f"; the training thread is inside fsync for {percent(synced / step)} of the step"
        return told + (fsync if synced >= _SYNCS * logging else "")
    transfer = (names.TRANSFER,) if now.facts.has_accelerator else ()
    wanted = (names.LOADER, *transfer, *names.COMPUTE)
    missing = [name for name in wanted if isnan(now.ns(name))]
    words = ", ".join("loader" if n == names.LOADER else n[6:-3] for n in missing)
    told = f"; not marked: {words}" if missing else _NOT_MARKED
    if logging < WORTH_SHOWING * step:
        return f"{percent(rest / step)} of the step is in no phase{told}"
    in_logging = f"{percent(logging / step)} of the step is in the logging phase"
    return f"{in_logging}, and {percent(rest / step)} in no phase{told}"
