"""Which rank the others wait for, by who comes last to the collectives.

Phases do not tell: a rank that is slow in backward makes backward longer on every rank, because
that is where the others wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from trainobs.replay.trace import COVERAGE

Longs = npt.NDArray[np.int64]
Arrivals = Mapping[tuple[int, int], int]
"""(group, number of the collective in it) -> when a rank came to it, ns of a clock of all ranks."""

SHARE = 0.1
"""Of the step that others must wait for a rank, for it to be called a straggler."""

DOMINANCE = 0.8
"""Of all such waiting that one rank must be the cause of: chance makes each rank last in turn."""

OFTEN = 2 / 3
"""Of the steps, in which nobody may be waited for longer: of two ranks that are last in turn, one
is so a little more often, and then its median is far from 0."""

_LONGER = 2.0
"""How many times what a straggler costs in the median it costs in the mean, for that to be told."""

MIN_STEPS = 3
"""Steps with meetings below which nothing is said."""


def meetings(arrivals: Sequence[Arrivals]) -> Longs:
    """When each rank came to where all ranks met.

    A collective is a meeting if no rank came to the next one before the last had come to this one:
    so they waited. Of collectives that go on in the background, as DDP's do during backward, that
    is the last.

    Args:
        arrivals: those of each rank.

    Returns:
        Shape (meetings, ranks), in the order of the collectives.
    """
    common = set(arrivals[0]).intersection(*arrivals[1:]) if arrivals else set()
    pairs = sorted(key for key in common if (key[0], key[1] + 1) in common)
    if not pairs:
        return np.empty((0, len(arrivals)), np.int64)
    here = np.array([[rank[key] for rank in arrivals] for key in pairs])
    then = np.array([[rank[key[0], key[1] + 1] for rank in arrivals] for key in pairs])
    met: Longs = here[then.min(axis=1) >= here.max(axis=1)]
    return met


class Lateness(TypedDict):
    """Who held up whom; lists have a value for each rank.

    Attributes:
        steps: with meetings.
        most_ratio: of these, in which nobody was waited for longer.
        wait_ns: that it waited for the last one in a step, the mean.
        held_up_ns: that the next to last one waited for it in a step, the median or less.
        straggler: index of the rank that is one; None if none is.
        mostly: index of the rank that would be one if the others did not wait for more than it.
        at_times: index of the rank for which the others wait most in the mean, though in some steps
            only, as it saves or validates alone; None if none is, or it is `mostly`. A straggler
            may be it too, if it costs twice as much as by `held_up_ns`.
        at_times_ns: that the next to last one waited for it in a step, the mean; 0 if none is.
    """

    steps: int
    most_ratio: list[float]
    wait_ns: list[float]
    held_up_ns: list[float]
    straggler: int | None
    mostly: int | None
    at_times: int | None
    at_times_ns: float


def lateness(met: Longs, starts_ns: Longs, step_ns: float) -> Lateness | None:
    """Who held up whom, from `meetings`.

    Who held up whom goes by medians over steps with meetings, since a rank that stalls once is no
    straggler, and by means where they are less, as of a rank that is late in some steps only. Times
    are spread over the steps between where ranks meet in some steps only.

    Args:
        met: when each rank came; shape (meetings, ranks).
        starts_ns: when the steps began, ascending; what was before the first is left out.
        step_ns: median length of a step.

    Returns:
        None if there were too few.
    """
    step_of = np.searchsorted(starts_ns, met.min(axis=1, initial=np.iinfo(np.int64).max), "right")
    met, step_of = met[step_of > 0], step_of[step_of > 0]
    known, row = np.unique(step_of, return_inverse=True)
    if len(known) < MIN_STEPS or met.shape[1] < 2 or not step_ns:
        return None
    ordered = np.sort(met, axis=1)
    held_up, wait = np.zeros((2, len(known), met.shape[1]))
    np.add.at(held_up, (row, met.argmax(axis=1)), ordered[:, -1] - ordered[:, -2])
    np.add.at(wait, row, ordered[:, -1:] - met)
    # Of ranks that meet every so many steps, a step waits for so much less.
    often = len(known) / (known[-1] - known[0] + 1)
    means = held_up.mean(axis=0) * often
    typical = np.minimum(np.median(held_up, axis=0) * often, means)
    worst = int(typical.argmax())
    most = held_up.argmax(axis=1)
    most_ratio = [float((most == rank).mean()) for rank in range(met.shape[1])]
    is_often = typical[worst] >= SHARE * step_ns and most_ratio[worst] >= OFTEN
    is_alone = typical[worst] >= DOMINANCE * typical.sum()
    # Without the longest waits: who stalls once or twice is late at no times that come again.
    again = np.sort(held_up, axis=0)[: 1 - MIN_STEPS].sum(axis=0) / len(known) * often
    at_times = int(again.argmax())
    mean_step_ns = np.diff(starts_ns[[known[0] - 1, known[-1] - 1]])[0] / (known[-1] - known[0])
    is_late = again[at_times] >= max(SHARE * mean_step_ns, DOMINANCE * again.sum())
    is_most = means[at_times] >= DOMINANCE * means.sum()
    is_both = is_alone and at_times == worst and again[worst] >= _LONGER * typical[worst]
    is_other = is_late and is_most and (is_both or not (is_often and at_times == worst))
    return {
        "steps": len(known),
        "most_ratio": most_ratio,
        "wait_ns": (wait.mean(axis=0) * often).tolist(),
        "held_up_ns": typical.tolist(),
        "straggler": worst if is_often and is_alone else None,
        "mostly": worst if is_often and not is_alone else None,
        "at_times": at_times if is_other else None,
        "at_times_ns": float(means[at_times]) if is_other else 0.0,
    }


def too_long(late: Lateness, slept_ns: Sequence[float | None], step_ns: float) -> bool:
    """Whether a rank waited longer by `lateness` than it slept in collectives.

    Who goes on behind a collective, and comes back when the last has come to it, waited for nobody.

    Args:
        late: what `lateness` found.
        slept_ns: mean time that each rank slept in collectives in a step; None where unknown.
        step_ns: median length of a step.
    """
    return any(
        slept is not None and slept < COVERAGE * wait and wait - slept >= SHARE * step_ns
        for wait, slept in zip(late["wait_ns"], slept_ns, strict=True)
    )


def by_waiting(wait_ns: Sequence[float], step_ns: float) -> int | None:
    """The straggler by what ranks themselves waited, where their clocks cannot be compared.

    It is the one that waits far less than every other: they wait for it.

    Args:
        wait_ns: mean time that each rank waited in a step.
        step_ns: median length of a step.
    """
    if len(wait_ns) < 2 or not step_ns:
        return None
    least, *others = sorted(wait_ns)
    return wait_ns.index(least) if others[0] - least >= SHARE * step_ns else None
