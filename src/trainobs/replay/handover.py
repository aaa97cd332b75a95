"""How a batch comes from its worker to the training thread, and what its sampler takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainobs.replay.metric_columns import KEPT, START, WAIT, Floats, mean

HANDED_NS = 300_000.0
"""What handing over a batch is taken to need where nobody ever waited for one."""

TENSOR_NS = (50e3, 250e3)
"""CPU time that taking over one tensor costs the training thread, least and most, as torch shares
memory by default: it opens a socket to the worker, and both prove that they know a key (48 to
205 us, 10 to 300 tensors a batch). By `file_system` it took half as much (62 us for 113)."""

MOST_OF_WAIT = 1.2
"""Of the wait for the last batch of a step, all of its waits for data at most: it is about that."""

COMPUTES = 0.5
"""Share of the time of making a batch from which on workers compute, more than anything else."""

ENOUGH = 5
"""Steps from which on they tell how a batch is handed over."""


class Draw(NamedTuple):
    """What the sampler takes of the training thread for a batch, ns.

    Attributes:
        cpu: of CPU time.
        away: off the CPU.
    """

    cpu: float
    away: float


NO_DRAW = Draw(0.0, 0.0)


@dataclass(frozen=True)
class Handover:
    """What it takes to hand over a batch, ns; nothing without workers.

    Attributes:
        receive: CPU time of the training thread for taking it over.
        tensors: the part of it that is surely for the tensors of the batch.
        away: how long it sleeps meanwhile: it asks a thread of the worker for each tensor.
        answered: the part of it in which that thread may have computed.
        held: what is left of it, as far as the same worker made another batch meanwhile: it holds
            the lock of its interpreter.
        feed: time from the end of a batch until it can be taken over.
        feed_cpu: CPU time of its worker meanwhile.
        feed_held: the part of `feed` in which the worker computes the next batch, and holds the
            lock of its interpreter, which handing over needs as well.
    """

    receive: float = 0.0
    tensors: float = 0.0
    away: float = 0.0
    answered: float = 0.0
    held: float = 0.0
    feed: float = 0.0
    feed_cpu: float = 0.0
    feed_held: float = 0.0


NOTHING = Handover()


def handover_of(
    columns: Mapping[str, Floats],
    get: Mapping[str, Floats],
    made: Mapping[str, Floats],
    draw: Draw,
    tensors: int,
    usual: npt.NDArray[np.bool_],
) -> Handover:
    """How the workers of a run hand over.

    Args:
        columns: of its steps.
        get: the same with 0 for unknown.
        made: `BATCH_TIMES`, what its batches take to be made.
        draw: what its sampler takes.
        tensors: in a batch; 0: unknown.
        usual: whether a step is not the first of an epoch, of each.
    """
    beside = get["sched/worker_cpu_ns"] - made["compute_ns"]
    extra = max(0.0, float(np.mean(beside[usual])))
    computes = made["compute_ns"].mean() >= COMPUTES * sum(ns.mean() for ns in made.values())
    waited = get[WAIT] - get["sched/wait_offcpu_ns"] - get[START]
    receive = max(0.0, float(np.median(np.maximum(0.0, waited))) - draw.cpu)
    away = max(0.0, _asleep(columns, get) - draw.away)
    answered = min(away, extra, TENSOR_NS[1] * tensors)
    feed = _feed(columns, receive + away)
    feed_cpu = min(feed, extra)
    return Handover(
        receive=receive,
        tensors=min(receive, taking_tensors(extra, tensors)),
        away=away,
        answered=answered,
        held=max(0.0, min(away - answered, mean(columns.get(KEPT)))),
        feed=feed,
        feed_cpu=feed_cpu,
        feed_held=max(0.0, feed - feed_cpu - HANDED_NS) if computes else 0.0,
    )


def taking_tensors(handing: float, tensors: float) -> float:
    """CPU time that the training thread takes to take over so many tensors, surely.

    Where there are many, as much as the worker computes to hand them over: they ask and answer in
    turn. But no more than was ever seen.
    """
    least, most = (ns * tensors for ns in TENSOR_NS)
    return min(max(least, handing), most)


def _asleep(columns: Mapping[str, Floats], get: Mapping[str, Floats]) -> float:
    """How long the training thread sleeps in a wait for a batch that had been made before."""
    begin, end = columns["batch/fetch_begin_ns"], columns["batch/fetch_end_ns"]
    was_made = columns["batch/end_ns"] <= begin
    is_all = get[WAIT] <= MOST_OF_WAIT * (end - begin)
    asleep = get["sched/wait_offcpu_ns"] - get["sched/wait_runqueue_ns"] - get[START]
    found = np.maximum(0.0, asleep)[was_made & is_all]
    return float(found.mean()) if len(found) >= ENOUGH else 0.0


def _feed(columns: Mapping[str, Floats], receive: float) -> float:
    """How long a batch is on its way, from steps that waited for one that was being made.

    Args:
        columns: of the steps.
        receive: what of it the training thread takes to receive one.
    """
    begin, end = columns["batch/fetch_begin_ns"], columns["batch/fetch_end_ns"]
    made = columns["batch/end_ns"]
    late = (end - made)[np.isfinite(end) & (made > begin)]
    # Of the shortest: the rest waited for a CPU, too.
    return max(0.0, float(np.percentile(late, 5)) - receive) if len(late) >= ENOUGH else HANDED_NS
