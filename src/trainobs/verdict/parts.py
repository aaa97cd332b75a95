"""The time of the training thread, taken apart into what a verdict can name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan, nan
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from trainobs.replay.metric_columns import COUNT
from trainobs.replay.predict import Replay
from trainobs.verdict import metric_names as names
from trainobs.verdict.facts import Facts
from trainobs.verdict.verdict import VerdictKind

BOUND = 0.20
"""Share of all time from which a cost is a bottleneck."""

RIVAL_COST = 0.5
"""Share of the largest cost that makes a second bottleneck its equal."""

OVERHEADS = (
    VerdictKind.LOADER,
    VerdictKind.COPY,
    VerdictKind.COMMUNICATION,
    VerdictKind.CHECKPOINT,
    VerdictKind.VALIDATION,
    VerdictKind.MEMORY,
    VerdictKind.SLEEP,
    VerdictKind.NO_CPU,
    VerdictKind.DEVICE,
)
"""Costs beside computation; the last two only where no phase is known."""

FAULTS_PER_STEP = 1.0
"""Refaults, or major faults, a step from which a process lives on pages that were taken from it."""

SLEEP_SHOWS = 0.20
"""Share of the step from which unexplained sleep is taken for waiting in collectives. Less shows
nothing: where collectives run on a GPU the host does not sleep in them."""

TAKEN_NS, TAKEN_SHARE = 1e6, 0.1
"""What taking over any batch may cost the training thread, and what those of a step may of the
step: that much is nothing to remedy. In a step of 2 ms the whole of 1 ms would be."""

HOLDS = 0.5
"""Share of the wait for the interpreter's lock that other threads must have computed meanwhile, or
it was no wait for that: a lock polled with a short timeout looks the same."""

_NET = ("net/sent_bytes", "net/received_bytes")

Mean = Mapping[str, float]
Times = TypeVar("Times", float, npt.NDArray[np.float64])


@dataclass(frozen=True)
class StepParts:
    """A step taken apart, ns; NaN for what was not measured.

    Attributes:
        step: all of it, validation and checkpoints too.
        part: what each kind of verdict is about.
        maybe_taking_over: what of the wait for the loader may be that, where it is not known.
        other: time outside every phase that was marked, and logging; but for collectives.
        garbage: time in Python's garbage collector.
        runqueue: time in which the training thread was ready to run and had no CPU; loader,
            checkpoints and validation left out, as in the rest.
        device: time in which it slept for a device.
        interpreter: time in which it slept for Python's interpreter lock, the wait for the loader
            left out, as far as that is known.
        loader_interpreter: the same in the wait for the loader; 0 if unknown.
        polled: time in which it slept as for that lock, and nobody computed who may have held it.
        asleep: phase -> time in which it slept for something that is not known.
        idle: time in which it slept for other threads of its process that did not compute, or must
            have slept in no phase that is known.
        sees_sleep: whether it is known by phases what it slept for.
        unexplained: without that, time outside loader, checkpoints and validation in which it must
            have been off the CPU for no want of one; 0 with it.
        off: time in which it was off the CPU for any reason, of that in which it computes; where
            that is unknown, all of computation.
    """

    step: float
    part: Mapping[VerdictKind, float]
    maybe_taking_over: float
    other: float
    garbage: float
    runqueue: float
    device: float
    interpreter: float
    loader_interpreter: float
    polled: float
    asleep: Mapping[str, float]
    idle: float
    sees_sleep: bool
    unexplained: float
    off: float

    def least(self, kind: VerdictKind) -> float:
        """How much of a cost is sure; 0 for what was not measured."""
        less = self.maybe_taking_over if kind is VerdictKind.LOADER else 0.0
        return max(0.0, known(self.part[kind]) - less)

    @property
    def lost(self) -> float:
        """Time in which the training thread could have computed, and did not.

        A garbage collector that has no CPU counts twice: together these are no more than there is.
        """
        kinds = (VerdictKind.LOADER, VerdictKind.CHECKPOINT, VerdictKind.VALIDATION)
        rest = self.step - sum(known(self.part[kind]) for kind in kinds)
        lost = sum(map(known, (self.garbage, self.runqueue, self.device, self.interpreter)))
        return min(max(0.0, rest), lost)

    @property
    def most_lost(self) -> float:
        """The same with what is unknown at its largest."""
        parts = (self.runqueue, self.device, self.interpreter)
        if not any(map(isnan, parts)):
            return known(self.garbage) + sum(parts)
        if not self.sees_sleep and not isnan(self.unexplained):
            return self.lost  # the unknown is in that, and was weighed against this
        return known(self.garbage) + self.off


class Situation(NamedTuple):
    """All that a rule may look at; `replay` where the record can be replayed."""

    mean: Mean
    parts: StepParts
    facts: Facts
    replay: Replay | None

    def ns(self, metric: str) -> float:
        """Value of a metric per step, NaN if unknown."""
        return self.mean[metric]

    @property
    def batches(self) -> float:
        """How many batches a step gets; 1 where nobody knows."""
        return batches_of(self.mean)

    @property
    def knows_phases(self) -> bool:
        """Whether any phase of the steps is known."""
        return _knows_phases(self.mean)


def known(ns: float) -> float:
    """A time, or 0 for one that was not measured."""
    return 0.0 if isnan(ns) else ns


def batches_of(mean: Mean) -> float:
    """How many batches a mean step gets; 1 where nobody knows."""
    return max(1.0, known(mean[COUNT]))


def _knows_phases(mean: Mean) -> bool:
    return not all(isnan(mean[name]) for name in names.PHASES)


def parts_of(mean: Mean, facts: Facts) -> StepParts:
    """Take a mean step apart."""
    step = max(1.0, mean[names.STEP])
    rare = known(mean[names.CHECKPOINT]) + known(mean[names.VALIDATION])
    usual = max(0.0, 1.0 - rare / step)
    computing = sum(known(mean[name]) for name in (*names.COMPUTE, names.NAMED))
    unmarked = known(mean[names.OTHER])  # collectives may be in no phase
    garbage = mean[names.GARBAGE] * usual
    device = _device(mean, facts)
    memory = _memory(mean, known(device))
    gil, polled = _interpreter(mean, usual)
    asleep = {name.split("/")[1].removesuffix("_sleep_ns"): mean[name] for name in names.SLEEPS}
    batches = batches_of(mean)
    off = mean[names.WAITED_OFF_CPU]
    taken = float(taken_over(step, mean[names.LOADER], off, facts.workers, batches))
    is_told = facts.has_accelerator or facts.world_size > 1  # it may be for these
    sees_sleep = not all(isnan(mean[name]) for name in names.SLEEPS)
    unexplained = 0.0 if is_told or sees_sleep else _outside(mean, rare)
    idle = polled + _for_idle_threads(mean, _gil(mean) * usual)
    idle += max(0.0, known(unexplained - mean["sched/thread_cpu_ns"]) - stolen(mean, facts))
    in_step = (known(ns) for phase, ns in asleep.items() if phase != "transfer")  # that is copying
    slept = 0.0 if facts.has_accelerator else sum(in_step) + idle
    communication = _at_most(computing + unmarked, _communication(mean, facts, step))
    computed = computing - known(communication)
    waits = min(known(communication), idle) if facts.world_size > 1 else 0.0
    runqueue = _runqueue(mean, usual)
    device = max(0.0, device - known(memory)) if known(memory) and known(device) else device
    is_all = not _knows_phases(mean)  # else it may lie in the wait for the loader, or in a save
    return StepParts(
        step=step,
        part={
            VerdictKind.LOADER: mean[names.LOADER] - known(taken),
            VerdictKind.COPY: mean[names.TRANSFER],
            VerdictKind.COMMUNICATION: communication,
            VerdictKind.CHECKPOINT: mean[names.CHECKPOINT],
            VerdictKind.VALIDATION: mean[names.VALIDATION],
            VerdictKind.SLEEP: max(0.0, slept - waits),
            VerdictKind.COMPUTE: max(0.0, computed),
            VerdictKind.MEMORY: _at_most(step, memory),
            VerdictKind.NO_CPU: runqueue if is_all else nan,
            VerdictKind.DEVICE: device if is_all else nan,
        },
        maybe_taking_over=_most_taken(step, batches) if isnan(taken) else 0.0,
        other=unmarked + known(mean[names.LOGGING]) + min(0.0, computed),
        garbage=_at_most(max(0.0, step - rare - known(mean[names.LOADER])), garbage),
        runqueue=runqueue,
        device=device,
        interpreter=gil,
        loader_interpreter=_held(mean, known(mean[names.WAITED_FOR_GIL])),
        polled=polled,
        asleep=asleep,
        idle=idle,
        sees_sleep=sees_sleep,
        unexplained=unexplained,
        off=_off(mean, rare, computing),
    )


def taken_over(step: Times, wait: Times, off: Times, workers: int | None, batches: float) -> Times:
    """What taking batches over cost the training thread, ns: it computed in the wait for them.

    Without workers nothing is taken over.

    Args:
        step: time of a step, or of each of several.
        wait: its wait for the loader.
        off: of that, off the CPU; NaN if unknown, and then so is the answer.
        workers: of the loader.
        batches: that a step gets.
    """
    most = _most_taken(step, batches)
    taken: Times = np.clip(wait - off, 0.0, most) if workers else 0.0 * step
    return taken


def _most_taken(step: Times, batches: float) -> Times:
    most: Times = np.minimum(TAKEN_NS * batches, TAKEN_SHARE * step)
    return most


def stolen(mean: Mean, facts: Facts) -> float:
    """What a hypervisor may have taken of a step at most: that looks like sleep to `/proc`."""
    if facts.sees_switches:
        return 0.0
    cpus = (facts.cpus_at_most or 1.0) * facts.ranks_here
    share = max(0.0, known(mean["sched/others_cpu_ratio"]))
    return min(1.0, share * cpus) * mean[names.STEP]


def _outside(mean: Mean, rare: float) -> float:
    """Where no phase knows its sleep: what of it must lie outside loader and what is rare."""
    explained = known(mean["sched/main_runqueue_ns"]) + known(mean["sched/main_iowait_ns"])
    slept = mean["sched/main_offcpu_ns"] - explained - known(_gil(mean))
    outside = slept - known(mean[names.LOADER]) - rare
    return outside if isnan(outside) else max(0.0, outside)


def _off(mean: Mean, rare: float, computing: float) -> float:
    if not isnan(mean["sched/work_offcpu_ns"]):
        return mean["sched/work_offcpu_ns"]
    off = mean["sched/main_offcpu_ns"] - rare - known(mean[names.LOADER])
    return max(0.0, computing - known(mean[names.GARBAGE]) if isnan(off) else off)


def _at_most(limit: float, ns: float) -> float:
    return ns if isnan(ns) else min(limit, ns)


def _runqueue(mean: Mean, usual: float) -> float:
    """Old run logs do not tell in which phase it was."""
    ready = mean["sched/work_runqueue_ns"]
    return mean["sched/main_runqueue_ns"] * usual if isnan(ready) else ready


def _device(mean: Mean, facts: Facts) -> float:
    """Time in which the training thread slept for a device outside loader and checkpoints."""
    if not isnan(mean["sched/work_iowait_ns"]):
        return mean["sched/work_iowait_ns"]
    elsewhere = known(mean[names.CHECKPOINT]) + known(mean[names.VALIDATION])
    if not facts.workers:  # it reads the data itself, as far as we know
        elsewhere += known(mean[names.LOADER])
    iowait = mean["sched/main_iowait_ns"]
    return iowait if isnan(iowait) else max(0.0, iowait - elsewhere)


def _interpreter(mean: Mean, usual: float) -> tuple[float, float]:
    """The wait for the interpreter's lock; and what looks like it, with nobody who held it.

    It is neither where the thread of trainobs may have held it, as in the first second of a run.
    """
    waited = _gil(mean) * usual
    held = _held(mean, waited)
    computed = known(mean["sched/thread_cpu_ns"]) + known(mean[names.OWN_CPU])
    return held, waited - held if computed < HOLDS * waited else 0.0


def _gil(mean: Mean) -> float:
    """The wait for the interpreter's lock outside of the wait for the loader; NaN if unknown."""
    return mean[names.INTERPRETER] - known(mean[names.WAITED_FOR_GIL])


def _held(mean: Mean, waited: float) -> float:
    """A wait for the interpreter's lock; 0 if other threads did not compute enough to hold it."""
    computed = mean["sched/thread_cpu_ns"]
    return 0.0 if computed < HOLDS * waited else waited


def _for_others(mean: Mean) -> float:
    """The wait for other threads, also for the interpreter's lock, in work; NaN if unknown."""
    slept = mean[names.OTHER_SLEEP] + mean["sched/work_iowait_ns"]
    slept += sum(known(mean[name]) for name in names.SLEEPS if name != names.OTHER_SLEEP)
    return mean["sched/work_offcpu_ns"] - mean["sched/work_runqueue_ns"] - slept


def _for_idle_threads(mean: Mean, interpreter: float) -> float:
    """The wait for other threads of the process that did not compute meanwhile either."""
    idle = _for_others(mean) - known(interpreter) - mean["sched/thread_cpu_ns"]
    return max(0.0, known(idle))


def _communication(mean: Mean, facts: Facts, step: float) -> float:
    """Time in collectives: measured, or the sleep of computation that nothing else explains.

    The second only where something was sent, so that there is somebody to wait for; and not with a
    GPU, in whose collectives the host does not sleep.
    """
    if facts.world_size == 1:
        return 0.0
    measured, sent = mean["ranks/wait_ns"], sum(known(mean[name]) for name in _NET)
    if not isnan(measured):
        # It has the waits in checkpoints and validation, of which other times tell.
        in_work = _for_others(mean)
        return measured if isnan(in_work) else min(measured, max(0.0, in_work))
    if not sent or facts.has_accelerator:
        return measured
    slept = _unexplained_sleep(mean, facts) - sum(known(mean[name]) for name in names.SLEEPS)
    return slept if slept >= SLEEP_SHOWS * step else nan


def _unexplained_sleep(mean: Mean, facts: Facts) -> float:
    """Time off the CPU that nothing else that is known explains, such as the loader."""
    ready_or_device = mean["sched/main_runqueue_ns"] + mean["sched/main_iowait_ns"]
    slept = mean["sched/main_offcpu_ns"] - ready_or_device - _gil(mean)
    rare = known(mean[names.CHECKPOINT]) + known(mean[names.VALIDATION])
    explained = mean[names.LOADER] + rare
    return max(0.0, slept - explained) if not isnan(slept) and facts.workers else nan


def _memory(mean: Mean, device: float) -> float:
    """Time that went into freeing memory, or into reading back what was taken.

    A page that is read for the first time was never taken. That pages came back is told by the
    refaults of the control group, which may be another process's: only beside faults of this one,
    and while this run had to free memory, are they taken for its own. One without the other leaves
    it unknown.
    """
    freed, freed_here = mean["memory/reclaim_ns"], mean["memory/main_reclaim_ns"]
    refaults, faults = mean["memory/refault_count"], mean["memory/major_fault_count"]
    back = faults if isnan(refaults) else refaults
    returns = known(back) >= FAULTS_PER_STEP and known(faults) > 0
    if isnan(freed) or (returns and not freed) or (freed and isnan(freed_here)):
        return nan
    return known(freed_here) + (device if returns else 0.0)
