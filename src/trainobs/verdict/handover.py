"""What handing a batch over took, and what the training thread did beside in its wait for it."""

from __future__ import annotations

from math import inf, isnan

from trainobs.replay.handover import NO_DRAW, Draw, taking_tensors
from trainobs.replay.metric_columns import COUNT, KEPT
from trainobs.verdict import asleep, kept
from trainobs.verdict import metric_names as names
from trainobs.verdict.facts import Facts
from trainobs.verdict.parts import TAKEN_NS, Mean, Situation, batches_of, known

FETCHES_NS = 3e6
"""CPU time of the training thread in the wait for a batch from which on it does more than take it
over (1.1 to 2.1 ms in the cases of docs/verdicts.md): a sampler computes, or there are very many
tensors."""

UNCOUNTED = 16
"""Batches that a step may get where nobody counts them."""

UNEVEN = 0.05
"""Share of the step from which on draws of very different times are a matter to it."""


def handed_over(now: Situation) -> float:
    """What handing batches over took that was no want of CPUs, at least.

    No more than was computed for it: by workers beside what they compute for batches, as much again
    by the training thread (or what the tensors need), and by threads of its own that pin memory. A
    training thread that does more, or sleeps, though the batch is made, may do so in a sampler, or
    around the loader.
    """
    handing = _handing(now)
    taking = min(max(handing, _taking_tensors(now)), _own(now))
    computed = handing + taking + max(0.0, asleep.used_in_wait(now))
    return max(0.0, min(_made_and_not_taken(now), computed))


def asleep_for_nobody(now: Situation) -> float:
    """How long the training thread surely slept in its wait for batches that were made.

    No want of a CPU, no lock, and no work of a worker explains it: a sampler may sleep there, or
    what is around the loader. Where nobody knows what workers computed for batches, none is sure.
    """
    if isnan(now.ns(kept.MADE)):
        return 0.0
    return max(0.0, _made_and_not_taken(now) - _own(now) - _handing(now) - kept_by_makers(now))


def _made_and_not_taken(now: Situation) -> float:
    """The wait for batches that are made, but for want of CPUs and the interpreter's lock."""
    queued = known(now.ns("sched/worker_runqueue_ns")) - known(now.ns("batch/cpu_wait_ns"))
    lacked = known(now.ns("sched/wait_runqueue_ns")) + max(0.0, queued)
    lacked += now.parts.loader_interpreter
    return known(now.ns(names.HANDOVER)) - known(now.ns(names.START)) - lacked - sum(drawn(now))


def _own(now: Situation) -> float:
    """CPU time of the training thread in its wait for data, but for what the sampler takes."""
    own = known(now.ns(names.LOADER) - now.ns(names.WAITED_OFF_CPU))
    return max(0.0, own - drawn(now).cpu)


def drawn(now: Situation) -> Draw:
    """What the sampler takes of the training thread in a step, as far as that is known."""
    return Draw(*(now.batches * ns for ns in now.facts.draw or NO_DRAW))


def are_uneven(facts: Facts, mean: Mean) -> bool:
    """Whether nobody knows what the sampler takes, and it may be much of a step."""
    return facts.uneven_draw_ns * batches_of(mean) >= UNEVEN * mean[names.STEP]


def _handing(now: Situation) -> float:
    """CPU time of workers beside what they, or threads that they wait for, compute for batches."""
    beside = known(now.ns("sched/worker_cpu_ns") - now.ns(kept.MADE))
    return max(0.0, beside - known(now.ns("batch/sleep_ns")))


def kept_by_makers(now: Situation) -> float:
    """How long finished batches may have waited for workers that were busy with the next ones.

    To hand over takes CPU time of theirs beside what they compute for batches: that much it took.
    """
    return max(0.0, known(now.ns(KEPT)) - _handing(now))


def fetched(now: Situation) -> float:
    """CPU time of the training thread in the wait, but for what taking over any batch costs.

    At least: where the wait is not divided, all of its time off the CPU may be in it.
    """
    off = now.ns(names.WAITED_OFF_CPU)
    if isnan(off) and isnan(now.ns(names.LOADER_DEVICE)):
        off = now.ns("sched/main_offcpu_ns")
    computed = max(0.0, known(now.ns(names.LOADER) - off) - drawn(now).cpu)
    # Some of the start of new workers is computed, too. Of others it is a sampler, or the like.
    computed -= known(now.ns(names.START)) if now.facts.has_new_workers else 0.0
    if now.facts.workers is None:  # it may make the batches itself
        return max(0.0, computed)
    batches = UNCOUNTED if isnan(now.ns(COUNT)) else now.batches
    if not now.facts.workers or computed < FETCHES_NS * batches:
        return 0.0
    # As much as was ever seen, where nobody knows what workers computed to hand them over.
    handing = inf if isnan(now.ns(kept.MADE)) else _handing(now)
    taking = taking_tensors(handing, batches * (now.facts.tensors or 0))
    return max(0.0, computed - TAKEN_NS * batches - taking)


def _taking_tensors(now: Situation) -> float:
    """CPU time that the training thread takes to take over the tensors of a step, surely."""
    return taking_tensors(_handing(now), now.batches * (now.facts.tensors or 0))
