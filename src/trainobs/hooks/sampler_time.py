"""What the sampler of a loader takes of the training thread, in the first batches of a pass.

Only the training thread knows that: from outside, what it computes or sleeps there looks like any
other part of its wait for data.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from typing import Any

SAMPLER = "sampler"
"""Of a loader, in `run.json`: `batches` whose indices were drawn while it was timed, what that took
(`ns`), and the CPU time of it (`cpu_ns`). None before there is one."""

TIMED = 64
"""Batches of a pass that are timed: some 2 us each, and nothing from then on."""

_NEXT, _DRAWN_FROM = "_next_index", "_sampler_iter"


def time_sampler(iterator: Any, noted: Sequence[dict[str, Any]]) -> None:
    """Have an iterator of torch's tell what it takes to draw the indices of a batch.

    The first draw is left out: a sampler may make the order of the epoch in it.

    Args:
        iterator: of one of torch's loaders, in whose place the method `_next_index` is wrapped.
        noted: where it is written down.
    """
    others = iterator.__dict__.get(_NEXT)
    if hasattr(iterator, _NEXT) and (others is None or isinstance(others, _TimedDraws)):
        iterator.__dict__[_NEXT] = _TimedDraws(iterator, noted)


class _TimedDraws:
    """In the place of `_next_index`; it holds the iterator by no reference, as that holds it.

    Persistent workers begin their next pass with draws before anyone is told: these do not count.
    """

    def __init__(self, iterator: Any, noted: Sequence[dict[str, Any]]) -> None:
        self._iterator = weakref.ref(iterator)
        self._noted = noted
        self._pass = id(getattr(iterator, _DRAWN_FROM, None))
        self._left = TIMED + 1

    def __call__(self) -> Any:
        iterator = self._iterator()
        self._left -= 1
        if not self._left:
            iterator.__dict__.pop(_NEXT, None)
        draw = getattr(type(iterator), _NEXT)
        begin, cpu = time.monotonic_ns(), time.thread_time_ns()
        indices = draw(iterator)
        cpu_ns, ns = time.thread_time_ns() - cpu, time.monotonic_ns() - begin
        is_same_pass = self._pass == id(getattr(iterator, _DRAWN_FROM, None))
        if self._left < TIMED and is_same_pass:
            for one in self._noted:
                _add(one, ns, min(ns, cpu_ns))
        return indices


def _add(noted: dict[str, Any], ns: int, cpu_ns: int) -> None:
    known = noted[SAMPLER] or {"batches": 0, "ns": 0, "cpu_ns": 0}
    noted[SAMPLER] = {
        "batches": known["batches"] + 1,
        "ns": known["ns"] + ns,
        "cpu_ns": known["cpu_ns"] + cpu_ns,
    }
