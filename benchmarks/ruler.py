"""The ruler of `make bench`: what observing adds to a step, in CPU time, with a bound on the error.

Other work on a machine stretches wall time, and hides what is small. So rounds are short, and those
of all arms take turns; the CPU time of the training thread, and of the whole process with its
children, is divided by the steps; the bare loop runs in two arms, whose difference shows what the
ruler cannot tell from nothing. What an arm adds is the median, over the blocks, of its difference
to the mean of the two bare rounds of its block, with a 95 % interval from the order of these
differences. The least of each arm stands beside it: other work only adds.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from math import comb
from pathlib import Path
from typing import Any, NamedTuple

SHARE = 0.01
"""Half-width of an interval, as a share of the step, up to which a number is taken for decided."""


LEAST_BLOCKS = 6
"""Of fewer differences even the least and the greatest are no 95 % interval of the median."""


class Cost(NamedTuple):
    """What a step of one round took, on average.

    Attributes:
        thread_us: CPU time of the thread that trains.
        process_us: CPU time of all threads of the process, and of its children that live.
        wall_us: time.
        waits: times that the training thread gave its CPU away: for a lock, a read, a timer.
    """

    thread_us: float
    process_us: float
    wall_us: float
    waits: float


Round = Callable[[], Cost]


class Meter:
    """Measures from construction to `per_step`; for the thread that trains."""

    def __init__(self) -> None:
        self._begin = _now()

    def per_step(self, steps: int) -> Cost:
        """What each of so many steps took."""
        thread, process, wall, waits = (b - a for a, b in zip(self._begin, _now(), strict=True))
        return Cost(*(ns / 1e3 / steps for ns in (thread, process, wall)), waits / steps)


def _now() -> tuple[int, int, int, int]:
    waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    process = time.process_time_ns() + sum(map(_cpu_ns, _children()))
    return time.thread_time_ns(), process, time.perf_counter_ns(), waits


def _children() -> list[str]:
    tasks = Path("/proc/self/task").glob("*/children")
    return [tgid for task in tasks for tgid in task.read_text().split()]


def _cpu_ns(tgid: str) -> int:
    """Of all its threads; `stat` counts in hundredths of a second, `schedstat` in ns."""
    tasks = Path(f"/proc/{tgid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks)


def compare(arms: Mapping[str, Round], blocks: int) -> dict[str, Any]:
    """Run blocks of rounds, one of each arm and two of the first, in changing order.

    Args:
        arms: name -> a round; the first is the bare loop.
        blocks: how many.

    Returns:
        Of the bare loop the median and the least of each part of `Cost`, of each other arm what it
        adds, and as "again" what the bare loop adds to itself.
    """
    bare = next(iter(arms))
    rounds = {**arms, "again": arms[bare]}
    names = list(rounds)
    found: dict[str, list[Cost]] = {name: [] for name in names}
    for block in range(blocks):
        turn = block % len(names)
        order = names[turn:] + names[:turn]
        for name in order if block // len(names) % 2 == 0 else reversed(order):
            found[name].append(rounds[name]())
    return {
        "blocks": blocks,
        "load": round(os.getloadavg()[0], 2),
        bare: {
            part: {
                "median": _rounded(statistics.median(column)),
                "least": _rounded(min(column)),
            }
            for part, column in _columns(found[bare] + found["again"]).items()
        },
        **_decided({name: _added(found, bare, name) for name in names if name != bare}, blocks),
    }


def _decided(added: dict[str, Any], blocks: int) -> dict[str, Any]:
    """Say of each number whether it is one: the bare loop must not differ from itself, either."""
    for parts in added.values():
        for part, found in parts.items():
            again = added["again"][part]
            is_even = again["low"] <= 0 <= again["high"] and again["is_narrow"]
            found["decided"] = blocks >= LEAST_BLOCKS and found["is_narrow"] and is_even
    return added


def _columns(costs: Sequence[Cost]) -> dict[str, tuple[float, ...]]:
    return dict(zip(Cost._fields, zip(*costs, strict=True), strict=True))


def _added(found: Mapping[str, Sequence[Cost]], bare: str, name: str) -> dict[str, Any]:
    bares, agains, arm = (_columns(found[key]) for key in (bare, "again", name))
    added = {}
    for part, values in arm.items():
        base = bares[part]
        if name != "again":
            base = tuple((a + b) / 2 for a, b in zip(base, agains[part], strict=True))
        differences = [b - a for a, b in zip(base, values, strict=True)]
        low, high = interval(differences)
        step = statistics.median(base if part == "waits" else bares["process_us"])
        added[part] = {
            "median": _rounded(statistics.median(differences)),
            "low": _rounded(low),
            "high": _rounded(high),
            "of_least": _rounded(min(values) - min(bares[part] + agains[part])),
            "ratio": round(1 + statistics.median(differences) / statistics.median(base), 4)
            if statistics.median(base)
            else None,
            "is_narrow": (high - low) / 2 <= SHARE * step,
        }
    return added


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Bounds of the median of what the values were drawn from, by their order alone.

    The widest pair of ranks whose tails together have less than 1 - `level` (binomial, p = 1/2).
    """
    ordered, count = sorted(values), len(values)
    tail, rank = 0.0, 0
    while rank < count // 2:
        tail += comb(count, rank) / 2**count
        if 2 * tail > 1 - level:
            break
        rank += 1
    low = max(rank - 1, 0)
    return ordered[low], ordered[count - 1 - low]


def _rounded(value: float) -> float:
    return round(value, 3)
