"""What the sampler of a loader takes of the training thread: some draws of each pass are timed.

Only the training thread knows that: from outside, what it computes or sleeps there looks like any
other part of its wait for data.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from random import Random
from resource import RUSAGE_THREAD, getrusage
from typing import Any

SAMPLER = "sampler"
"""Of a loader, in `run.json`: `batches` whose indices were drawn while it was timed, what that took
(`ns`; `ns2` is the sum of the squares), and the CPU time of it (`cpu_ns`). None before there is
one."""

TURN = 8
"""Draws in a row that are timed: some 4 us each."""

GAP = (64, 192)
"""Batches from one turn to the next, least and most: at random, as a sampler that draws for many
batches at once takes long for each of so many, and hardly anything for the others."""

_chance = Random(0)
"""Of its own: the numbers that the training draws stay what they are without us."""

_NEXT, _DRAWN_FROM = "_next_index", "_sampler_iter"


def next_turn(number: int) -> int:
    """Batch of a pass with which the next turn begins, after that of this number."""
    return number + _chance.randint(*GAP)


def time_draws(iterator: Any, noted: Sequence[dict[str, Any]], *, is_first: bool = False) -> None:
    """Have an iterator of torch's tell what it takes to draw the indices of a turn of batches.

    Args:
        iterator: of one of torch's loaders, in whose place the method `_next_index` is wrapped.
        noted: where it is written down.
        is_first: whether it has drawn none yet: the first draw is left out, as a sampler may make
            the order of the epoch in it.
    """
    others = iterator.__dict__.get(_NEXT)
    if hasattr(iterator, _NEXT) and (others is None or isinstance(others, _TimedDraws)):
        iterator.__dict__[_NEXT] = _TimedDraws(iterator, noted, TURN + is_first)


class _TimedDraws:
    """In the place of `_next_index`; it holds the iterator by no reference, as that holds it.

    Persistent workers begin their next pass with draws before anyone is told: these do not count.
    """

    def __init__(self, iterator: Any, noted: Sequence[dict[str, Any]], draws: int) -> None:
        self._iterator = weakref.ref(iterator)
        self._draw = getattr(type(iterator), _NEXT)
        self._noted = noted
        self._pass = id(getattr(iterator, _DRAWN_FROM, None))
        self._left = draws
        self._batches = self._ns = self._ns2 = self._cpu_ns = 0

    def __call__(self) -> Any:
        iterator = self._iterator()
        sleeps = getrusage(RUSAGE_THREAD).ru_nvcsw
        begin, cpu = time.monotonic_ns(), time.thread_time_ns()
        try:
            indices = self._draw(iterator)
        except BaseException:  # the pass is over, or an error of the sampler
            self._write_down()
            raise
        cpu_ns, ns = time.thread_time_ns() - cpu, time.monotonic_ns() - begin
        if getrusage(RUSAGE_THREAD).ru_nvcsw == sleeps:  # the rest is of whoever had its CPU
            ns = min(ns, cpu_ns)
        self._left -= 1
        if self._left < TURN and self._pass == id(getattr(iterator, _DRAWN_FROM, None)):
            self._batches += 1
            self._ns += ns
            self._ns2 += ns * ns
            self._cpu_ns += min(ns, cpu_ns)
        if self._left <= 0:
            iterator.__dict__.pop(_NEXT, None)
            self._write_down()
        return indices

    def _write_down(self) -> None:
        found = {
            "batches": self._batches,
            "ns": self._ns,
            "ns2": self._ns2,
            "cpu_ns": self._cpu_ns,
        }
        self._batches = self._ns = self._ns2 = self._cpu_ns = 0
        for one in self._noted if found["batches"] else ():
            known = one[SAMPLER] or dict.fromkeys(found, 0)
            one[SAMPLER] = {name: known[name] + value for name, value in found.items()}
