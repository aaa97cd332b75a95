"""What the loader slept for: who of the run computed, or waited for storage, meanwhile.

And what no part of the run slept for: it was kept from going on.
"""

from __future__ import annotations

from math import inf

from trainobs.core.text import percent
from trainobs.replay.metric_columns import BESIDE, STORAGE
from trainobs.replay.storage import asleep_for_storage, beside_for_storage
from trainobs.replay.trace import COVERAGE
from trainobs.verdict import metric_names as names
from trainobs.verdict.parts import Mean, Situation, known
from trainobs.verdict.verdict import Cause

KEPT = 0.1
"""Share of the time in which nothing of a run could go on, from which on no cost is told: the wait
for whatever it was at has that in it, so that half of a bottleneck may be none."""

STALLS = 0.5
"""Share of the time in which a group beyond memory.high has to hold up some task, to be why others
wait: else these stalls may lie beside the wait."""

_LONGEST_NS = 2e9
"""For which the kernel puts a task to sleep, at most, each time that it finds it beyond memory.high
(MEMCG_MAX_HIGH_DELAY_JIFFIES of mm/memcontrol.c)."""

_NETWORK_BYTES, _COMPRESSED = 1024.0, 0.01
"""What makers of batches have to receive for their data to come from a network, also as a share of
what they hand over: less is the answer of a lock, or of who keeps the time."""


def cause_of(now: Situation) -> Cause:
    """What makers of batches slept for: whoever computed or waited meanwhile, or sent them data.

    Where one waited for storage and data came from a network, nobody knows which it was.
    """
    slept = known(now.ns("batch/sleep_ns"))
    if _are_busy(now, slept):
        return Cause.HELPERS
    reads = asleep_for_storage(map(now.ns, STORAGE), known(now.ns("batch/device_ns")))
    reads = max(reads, _read_beside(now))
    is_storage = bool(slept) and reads >= COVERAGE * slept
    least = max(_NETWORK_BYTES, _COMPRESSED * known(now.ns("batch/handed_bytes")))
    is_network = known(now.ns("batch/received_bytes")) >= least
    if is_storage == is_network:
        return Cause.LOADER_SLEEP
    return Cause.STORAGE_BESIDE if is_storage else Cause.NETWORK


def cause_of_undivided(now: Situation, slept: float) -> Cause:
    """The same of a training thread that takes batches from nobody who marks them.

    No worker makes them: so it does, or another thread of its process.

    Args:
        now: the situation.
        slept: how long it surely slept in the wait for its loader.
    """
    if _are_busy(now, slept):
        return Cause.HELPERS
    is_storage = slept > 0 and _read_beside(now) >= COVERAGE * slept
    return Cause.STORAGE_BESIDE if is_storage else Cause.FETCH_SLEEP


def is_beyond_high(now: Situation, waited: float) -> bool:
    """Whether the run slept because a control group of it is beyond its memory.high.

    Who takes memory then has to free some, and is put to sleep by the kernel, be it a worker, one
    of its threads or the training thread. The group tells for how long any task was, also one that
    is none of the run's.
    """
    high, stalled, freed = (known(now.ns(name)) for name in TOLD_BY[Cause.HIGH])
    least = max(COVERAGE * waited, STALLS * now.parts.step)
    return min(stalled, high * _LONGEST_NS) >= least and freed > 0


def _read_beside(now: Situation) -> float:
    """How long others waited for storage, where they may read for who makes the batches."""
    return 0.0 if now.facts.workers else beside_for_storage(map(now.ns, BESIDE))


def _are_busy(now: Situation, slept: float) -> bool:
    return slept > 0 and _beside_makers(now, slept) >= COVERAGE * slept


def _beside_makers(now: Situation, slept: float) -> float:
    """CPU time of other threads and processes of the run while the makers of batches slept."""
    workers, step = now.facts.workers, now.parts.step
    if workers:
        used = now.ns("sched/worker_cpu_ns") - known(now.ns("batch/compute_ns"))
        return surely_beside(now, known(used), workers * step - slept)
    return surely_beside(now, helpers_ns(now), step - slept)


def helpers_ns(now: Situation) -> float:
    """CPU time of processes and threads of the run that may compute for a data set."""
    return known(now.ns("sched/child_cpu_ns")) + max(0.0, used_in_wait(now))


def used_in_wait(now: Situation) -> float:
    """CPU time of other threads that torch's own cannot have used: those compute in the step."""
    threads = (now.facts.torch_threads or inf) - 1 + now.facts.has_accelerator  # with autograd's
    used = known(now.ns("sched/thread_cpu_ns"))
    return used - (threads * (now.parts.step - known(now.ns(names.LOADER))) if threads else 0.0)


def surely_beside(now: Situation, used: float, awake: float) -> float:
    """CPU time of others that surely had no room in the time in which somebody was awake.

    That one takes a CPU, and they may have all the rest then: on many CPUs little is sure, and
    nothing where nobody knows how many there are.
    """
    if now.facts.cpus_at_most is None:
        return 0.0
    cpus = now.facts.cpus_at_most * now.facts.ranks_here
    return used - max(1.0, cpus - 1.0) * max(0.0, awake)


def why_kept(mean: Mean) -> str:
    """What kept the run from going on in a time that counts as a wait for something; or "".

    A stop in the step is told from its sleep; one in a wait for data, a checkpoint or a validation
    lies in these, and a freeze in whatever the run was at.
    """
    stopped = known(mean[names.ANY_STOPPED]) - known(mean[names.STOPPED])
    frozen, step = known(mean[names.FROZEN]), max(1.0, mean[names.STEP])
    if max(0.0, stopped) + frozen < KEPT * step:
        return ""
    share = percent(min(1.0, max(stopped, frozen) / step))
    if frozen >= stopped:
        return (
            f"for {share} of all time the control group of the run was frozen, as by docker pause"
        )
    return (
        f"for {share} of all time a signal or a debugger had stopped the training thread while it "
        "waited for data, saved or validated"
    )


TOLD_BY = {
    Cause.HIGH: ("memory/high_count", "memory/stalled_ns", "memory/reclaim_ns"),
    Cause.HELPERS: ("sched/thread_cpu_ns", "sched/worker_cpu_ns", "sched/child_cpu_ns"),
    Cause.STORAGE_BESIDE: (*STORAGE, "sched/thread_iowait_ns"),
    Cause.CHILDREN: ("sched/child_cpu_ns",),
}
"""Cause -> metrics that tell of it."""
