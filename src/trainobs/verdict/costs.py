"""The step taken apart into what a verdict can name."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, nan

from trainobs.verdict import blocks
from trainobs.verdict.blocks import Usual
from trainobs.verdict.verdict import Facts, VerdictKind

FAULTS_PER_STEP = 1.0
"""Major faults a step from which a process lives on pages that were taken from it."""

SLEEP_SHOWS = 0.20
"""Share of the step from which unexplained sleep is taken for waiting in collectives. Less shows
nothing: where collectives run on a GPU the host does not sleep in them."""

_NET = ("net/sent_bytes", "net/received_bytes")


@dataclass(frozen=True)
class Costs:
    """A step taken apart, ns; NaN for what was not measured.

    Attributes:
        step: the step without validation, which is no part of training.
        part: what each kind of verdict is about. They add up to `step` with `other`, except for
            memory, which lies across the others.
        other: time outside every phase that was marked, and logging.
        garbage: time in Python's garbage collector.
        runqueue: time in which the training thread was ready to run and had no CPU, collections
            and checkpoints left out.
        device: time in which it slept for a device, loader and checkpoint left out.
        interpreter: time in which it slept for Python's interpreter lock, checkpoints left out.
        off: time in which it was off the CPU for any reason, loader and checkpoint left out; where
            that is unknown, all of computation.
    """

    step: float
    part: dict[VerdictKind, float]
    other: float
    garbage: float
    runqueue: float
    device: float
    interpreter: float
    off: float

    @property
    def lost(self) -> float:
        """Time of the step in which the training thread could have computed, and did not."""
        return sum(map(known, (self.garbage, self.runqueue, self.device, self.interpreter)))

    @property
    def most_lost(self) -> float:
        """The same with what is unknown at its largest."""
        parts = (self.runqueue, self.device, self.interpreter)
        return known(self.garbage) + (self.off if any(map(isnan, parts)) else sum(parts))


def known(ns: float) -> float:
    """A time, or 0 for one that was not measured."""
    return 0.0 if isnan(ns) else ns


def _at_most(limit: float, ns: float) -> float:
    return ns if isnan(ns) else min(limit, ns)


def _above_zero(ns: float) -> float:
    return ns if isnan(ns) else max(0.0, ns)


def costs_of(usual: Usual, facts: Facts) -> Costs:
    """Take a usual step apart."""
    mean = usual.mean
    other = known(mean[blocks.OTHER]) + known(mean[blocks.LOGGING])
    computing = sum(known(mean[name]) for name in blocks.COMPUTE)
    outside = known(mean[blocks.LOADER]) + known(mean[blocks.CHECKPOINT])
    step = max(1.0, computing + outside + known(mean[blocks.TRANSFER]) + other)
    communication = _at_most(computing, _communication(usual, facts, step))
    part = {
        VerdictKind.LOADER: mean[blocks.LOADER],
        VerdictKind.COPY: mean[blocks.TRANSFER],
        VerdictKind.COMMUNICATION: communication,
        VerdictKind.CHECKPOINT: mean[blocks.CHECKPOINT],
        VerdictKind.COMPUTE: computing - known(communication),
        VerdictKind.MEMORY: _at_most(step, _memory(usual, facts)),
    }
    # Want of a CPU strikes everywhere alike; what it adds to a collection is in that already. So
    # does want of the interpreter's lock, but a collection runs with that in hand.
    counted = (known(mean[blocks.GARBAGE]) + known(mean[blocks.CHECKPOINT])) / step
    runqueue = mean["sched/main_runqueue_ns"] * max(0.0, 1.0 - counted)
    interpreter = mean[blocks.INTERPRETER] * max(0.0, 1.0 - known(mean[blocks.CHECKPOINT]) / step)
    device = _device(usual, facts)
    off = mean["sched/main_offcpu_ns"] - outside
    off = max(0.0, computing - known(mean[blocks.GARBAGE]) if isnan(off) else off)
    return Costs(step, part, other, mean[blocks.GARBAGE], runqueue, device, interpreter, off)


def _communication(usual: Usual, facts: Facts, step: float) -> float:
    """Time in collectives: measured, or the sleep of computation that nothing else explains.

    The second only where something was sent, so that there is somebody to wait for.
    """
    if facts.world_size == 1:
        return 0.0
    measured, sent = usual.mean["ranks/wait_ns"], sum(known(usual.mean[name]) for name in _NET)
    if not isnan(measured) or not sent:
        return measured
    slept = _unexplained_sleep(usual, facts)
    return slept if slept >= SLEEP_SHOWS * step else nan


def _unexplained_sleep(usual: Usual, facts: Facts) -> float:
    """Time off the CPU that nothing else that is known explains, such as the loader."""
    mean = usual.mean
    ready_or_device = mean["sched/main_runqueue_ns"] + mean["sched/main_iowait_ns"]
    slept = mean["sched/main_offcpu_ns"] - ready_or_device - mean[blocks.INTERPRETER]
    explained = mean[blocks.LOADER] + known(mean[blocks.CHECKPOINT])
    return max(0.0, slept - explained) if not isnan(slept) and facts.workers else nan


def _memory(usual: Usual, facts: Facts) -> float:
    """Time that went into getting memory, or into getting back what was taken.

    Pressure is that of the whole machine; it counts only if this run itself felt it.
    """
    mean = usual.mean
    faults, reclaim = mean["memory/major_fault_count"], mean["memory/reclaim_ns"]
    faulting = known(faults) >= FAULTS_PER_STEP
    back = known(_device(usual, facts)) if faulting else 0.0
    felt = faulting or known(reclaim) > 0
    pressure = known(mean["pressure/memory_ns"]) if felt else 0.0
    nothing = isnan(faults) and isnan(reclaim)
    # Whether this run felt the pressure, nobody knows who did not count what it had to free.
    unfelt = isnan(reclaim) and not faulting and known(mean["pressure/memory_ns"]) > 0
    return nan if nothing or unfelt else max(known(reclaim) + back, pressure)


def _device(usual: Usual, facts: Facts) -> float:
    """Time in which the training thread slept for a device outside loader and checkpoints."""
    mean = usual.mean
    elsewhere = known(mean[blocks.CHECKPOINT])
    if not facts.workers:  # it reads the data itself, as far as we know
        elsewhere += known(mean[blocks.LOADER])
    iowait = mean["sched/main_iowait_ns"]
    return _above_zero(iowait - elsewhere)
