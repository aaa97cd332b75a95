"""How much of the training data a step takes: two runs may have steps of different work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainobs.core.records import SETUP, UNKNOWN
from trainobs.core.text import quantity
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import BATCHES

_SAME = 1.01
"""Ratio of the batches of two steps up to which they are as many: the last step of an epoch may
have fewer, and that is no setting."""

BATCH_COUNT = "loader/batch_count"


class StepWork(NamedTuple):
    """What a step takes.

    Attributes:
        batches: of all loaders; None: nobody counted them.
        batch_sizes: of these, each once, ascending; none where they do not say, as one with a
            sampler of batches.
    """

    batches: float | None
    batch_sizes: tuple[int, ...]

    def told(self) -> str:
        """In words."""
        of = f" of {' or '.join(map(quantity, self.batch_sizes))}" if self.batch_sizes else ""
        if self.batches is None:
            return f"batches{of}"
        count = f"{self.batches:.3g}"
        return f"{count} {'batch' if count == '1' else 'batches'}{of}"


def work_of(run: RunLog) -> StepWork:
    """What a step of a run takes, as far as it is known."""
    counts = run.rank.metric(BATCH_COUNT)[run.rank.step() != SETUP]
    counts = counts[counts > 0]  # a step may be made of the batch of the one before
    sizes = {one.get("batch_size") for one in run.info.get("loaders", ()) if _trains(one, run)}
    known = () if None in sizes else tuple(sorted(sizes))
    return StepWork(float(np.median(counts)) if len(counts) else None, known)


def _trains(loader: Mapping[str, Any], run: RunLog) -> bool:
    """Whether a loader gave batches to steps, as far as is known: else all may have."""
    batches = run.rank.columns(BATCHES, ("for_step", "loader"))
    own = np.asarray(batches["for_step"], np.int64) != UNKNOWN
    serials = np.unique(np.asarray(batches["loader"], np.int64)[own])
    return not len(serials) or loader.get("serial") in serials


class Unequal(NamedTuple):
    """That the steps of two sides take different work.

    Attributes:
        ratio: data that a step of B takes, over that of one of A; None: that is not known.
        unit: "sample"; or "batch", where loaders do not say how many samples one has.
        told: how they differ, in words.
    """

    ratio: float | None
    unit: str
    told: str


def unequal(old: Sequence[RunLog], new: Sequence[RunLog]) -> Unequal | None:
    """How the steps of two sides differ in what they take; None: as far as is known they do not."""
    sides = [[work_of(run) for run in side] for side in (old, new)]
    for name, side in zip("AB", sides, strict=True):
        for one in side[1:]:
            if not _is_same(side[0], one):
                told = f"a step of {name} has {side[0].told()}, and another has {one.told()}"
                return Unequal(None, "", told)
    a, b = sides[0][0], sides[1][0]
    if _is_same(a, b):
        return None
    told = f"a step of A has {a.told()}, and one of B has {b.told()}"
    ratio = 1.0 if a.batches is None or b.batches is None else b.batches / a.batches
    if not a.batch_sizes and not b.batch_sizes:
        return Unequal(ratio, "batch", told)
    if len(a.batch_sizes) == len(b.batch_sizes) == 1:
        return Unequal(ratio * b.batch_sizes[0] / a.batch_sizes[0], "sample", told)
    return Unequal(None, "", told)


def _is_same(a: StepWork, b: StepWork) -> bool:
    """Whether two steps take as much, as far as is known."""
    sizes = {a.batch_sizes, b.batch_sizes} - {()}
    if a.batches is None or b.batches is None:
        return len(sizes) <= 1
    low, high = sorted((a.batches, b.batches))
    return high <= _SAME * low and len(sizes) <= 1
