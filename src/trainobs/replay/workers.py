"""Another number of workers: who makes batches then, and how they are handed over."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import numpy as np

from trainobs.replay.handover import HANDED_NS, NOTHING, TENSOR_NS, Handover
from trainobs.replay.opening import (
    opened_by,
    with_opening,
    without_opening,
    without_surely_opened,
)
from trainobs.replay.trace import Trace

START_NS = (15e6, 80e6)
"""What starting a worker is taken to need, least and most, where none was ever seen to start."""

RECEIVE_NS = (HANDED_NS / 2, 2e6)
"""What receiving a batch is taken to need, likewise, whatever its size. The training thread asks a
thread of the worker for each tensor, which has to get the interpreter from who makes the next
batch: 1.4 ms in steps of 4 ms (one worker that computes, two tensors a batch)."""

ANSWER_NS = (30e3, 300e3)
"""How long the training thread sleeps for the answer of a worker for a tensor, likewise, beside
those that `RECEIVE_NS` has."""

SHARED_NS = (0.0, 80e3)
"""What a tensor costs the worker as it makes the batch, likewise: memory that is shared."""

HAND_NS_PER_BYTE = (0.0, 1.5)
"""What handing over a byte of it is taken to need, likewise. Tensors that a worker collates are in
shared memory already; others are copied. Neither end was measured: they are to be wide."""

SLOWER = 1.3
"""How much more CPU time the same may take in workers that share CPUs with the training thread: so
much it was in the one case that was measured, from 0 to 2 workers that compute in Python, on two
CPUs."""

LOCKED = 0.2
"""Share of the time of making a batch that several workers sleep, from which on it may be for a
lock that they share. What they compute while they hold it is then done by one at a time, too: with
4 workers for 2, which held it for 20 ms of CPU time a batch, a step took 0.97 times as long."""


def with_workers(trace: Trace, value: float) -> tuple[Trace, ...]:
    """The traces that may be right with so many workers."""
    count = int(value)
    if count == trace.workers:
        return (trace,)
    if not count:
        return _no_workers(trace)
    if trace.workers:
        start = trace.start * count / trace.workers
        more = replace(trace, workers=count, start=start)
        found = (more, trace) if count > trace.workers and _may_be_locked(trace) else (more,)
        late = _answered_late(more, fewer=count < trace.workers)
        opened = opened_by(trace, count)
        each = () if opened is trace else (replace(opened, workers=count, start=start),)
        return (*found, *map(_answered_at_once, found), late, *each)
    size = 0.0 if isnan(trace.handed_bytes) else trace.handed_bytes
    tensors = max(0, trace.tensors - 2)
    busy = (0.0, float(trace.make_cpu.mean()) / count if tensors else 0.0)
    made = [
        replace(
            trace,
            workers=count,
            has_new_workers=True,
            prefetch=trace.prefetch or 2,
            start=start * count,
            hand=Handover(
                receive=receive + size * per_byte / 2 + tensors * tensor,
                away=tensors * answer + makes,
                feed=HANDED_NS + size * per_byte / 2,
            ),
            make_cpu=trace.make_cpu * more + tensors * shared,
        )
        for start, receive, per_byte, more, tensor, answer, shared, makes in zip(
            START_NS,
            RECEIVE_NS,
            HAND_NS_PER_BYTE,
            (1.0, SLOWER),
            TENSOR_NS,
            ANSWER_NS,
            SHARED_NS,
            busy,
            strict=True,
        )
    ]
    if not any(trace.opening) or not trace.is_first.any():
        return tuple(made)
    return (*made, with_opening(made[-1], count, *trace.opening))


def _no_workers(trace: Trace) -> tuple[Trace, ...]:
    """The training thread makes batches itself, and nobody hands over, nor shares memory.

    At best it does without all that workers may have done to begin, and to share a batch. At worst
    what it computes in the wait for no tensors, and sleeps while no worker answers, is no
    hand-over, and stays; and each step finds the caches as a batch has left them.
    """
    hand, alone = trace.hand, replace(trace, workers=0, hand=NOTHING, start=0.0)
    copied = 0.0 if isnan(trace.handed_bytes) else trace.handed_bytes * HAND_NS_PER_BYTE[1] / 2
    shared = np.minimum(trace.make_cpu, trace.tensors * SHARED_NS[1] + copied)
    opened = without_surely_opened(trace)
    stays = replace(
        alone,
        make_cpu=opened.make_cpu + hand.receive - hand.tensors,
        make_sleep=opened.make_sleep,
        away=alone.away + hand.away - hand.answered,
    )
    least = replace(without_opening(trace), workers=0, hand=NOTHING, start=0.0)
    least = replace(least, make_cpu=np.maximum(0.0, least.make_cpu - shared))
    return least, slower(stays)


def _answered_at_once(trace: Trace) -> Trace:
    """Who makes fewer batches may have time to answer."""
    return replace(trace, hand=replace(trace.hand, away=0.0, answered=0.0, held=0.0))


def _answered_late(trace: Trace, *, fewer: bool) -> Trace:
    """More that answer may take caches and CPUs from each other.

    And a worker that makes more batches has less time to answer: none while it makes one, at worst.
    """
    hand = trace.hand
    makes = float(trace.make_cpu.mean()) if fewer and hand.away else 0.0
    hand = replace(hand, receive=hand.receive * SLOWER, away=hand.away * SLOWER + makes)
    return replace(trace, hand=hand)


def _may_be_locked(trace: Trace) -> bool:
    slept = trace.make_sleep.mean()
    making = trace.make_cpu.mean() + trace.make_device.mean() + slept
    return trace.workers > 1 and bool(slept >= LOCKED * making > 0)


def slower(trace: Trace) -> Trace:
    """The same where all that computes may share caches with more than it did."""
    return replace(trace, cpu=trace.cpu * SLOWER, make_cpu=trace.make_cpu * SLOWER)
