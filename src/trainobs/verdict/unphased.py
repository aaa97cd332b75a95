"""The verdict where no phase of the steps is known: from what the kernel counts of the thread.

That is a training without torch's loaders, seen from outside. A loader may be anywhere in its
steps, so nothing is loader-bound, and nothing compute-bound: but when the training thread had no
CPU, or slept, is known whatever it was about.
"""

from __future__ import annotations

from math import isnan

from trainobs.core.text import percent
from trainobs.verdict.parts import BOUND, OVERHEADS, RIVAL_COST, Situation, known
from trainobs.verdict.verdict import Outcome, VerdictKind, abstained

_HELD = (VerdictKind.NO_CPU, VerdictKind.DEVICE, VerdictKind.MEMORY)
"""What no GPU and no other rank is waited for in."""


def outcome_of(now: Situation) -> Outcome:
    """The verdict and the time that it is about; or why there is none."""
    parts, off = now.parts, now.ns("sched/main_offcpu_ns")
    if isnan(off):
        return abstained("no phase of the steps is known, nor when the training thread had a CPU")
    costs = {kind: parts.least(kind) for kind in OVERHEADS}
    top = max(costs, key=lambda kind: costs[kind])
    most, on = costs[top], max(0.0, parts.step - off)
    held = known(now.ns("sched/main_runqueue_ns")) + known(now.ns("sched/main_iowait_ns"))
    slept = min(parts.step, max(0.0, off - held))
    is_bound = most >= BOUND * parts.step
    if now.facts.has_accelerator and not (is_bound and top in _HELD and most >= max(on, slept)):
        return abstained(_maybe_for_gpu(slept / parts.step, on / parts.step))
    is_asleep = is_bound and top is VerdictKind.SLEEP
    if slept >= max(BOUND * parts.step, most) and not is_asleep:
        share = percent(slept / parts.step)
        whom = "which may be for other ranks"
        if now.facts.world_size == 1:
            whom = "and other threads of its process compute, for which it may wait"
        return abstained(f"for {share} of the step the training thread sleeps, {whom}")
    if not is_bound:
        return Outcome(VerdictKind.ON_CPU, on)
    of_two = sorted(costs, key=lambda kind: -costs[kind])[:2]
    if costs[of_two[1]] >= max(BOUND * parts.step, RIVAL_COST * most):
        bound = [ns for ns in costs.values() if ns >= BOUND * parts.step]
        return Outcome(VerdictKind.MIXED, min(parts.step, sum(bound)))
    return Outcome(top, most)


def _maybe_for_gpu(slept: float, on: float) -> str:
    """CUDA has a thread that waits for the GPU sleep, or ask again and again."""
    return (
        f"the training thread sleeps for {percent(slept)} of the step and is on a CPU for "
        f"{percent(on)}, and may wait for the GPU in both"
    )
