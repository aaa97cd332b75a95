"""How much of the training data a step takes: two runs may have steps of different work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainobs.analysis.stored import lacking
from trainobs.core.records import SETUP, UNKNOWN
from trainobs.core.text import quantity
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import BATCHES

MOST_OFF = 0.5
"""Of the samples of a step that its batches may lack, from which on nobody knows how many it has:
a pass of two batches has a whole one, and one of any size."""

SAME = 0.01
"""Share that steps of equal settings may differ by in batches: one run may end within a pass."""

BATCH_COUNT = "loader/batch_count"


class StepWork(NamedTuple):
    """What a step takes.

    Attributes:
        batches: of all loaders, in the mean, as the time of a step is one: the last step of a pass
            may have fewer; None: nobody counted them.
        batch_sizes: of these, each once, ascending; none where they do not say, as one with a
            sampler of batches.
        has_loaders: whether there is any loader of torch.
        in_pass: fewest batches in a pass over one of them, the last of which may be smaller; None:
            it is not known.
        usual: batches of most steps.
        is_sure: whether it is known which loaders gave the batches.
    """

    batches: float | None
    batch_sizes: tuple[int, ...]
    has_loaders: bool = True
    in_pass: int | None = None
    usual: float | None = None
    is_sure: bool = True

    @property
    def at_least_one(self) -> float:
        """`batches`, or 1 where nobody counted them."""
        return max(1.0, self.batches or 1.0)

    def told(self) -> str:
        """In words."""
        of = f" of {' or '.join(map(quantity, self.batch_sizes))}" if self.batch_sizes else ""
        of += " (not known which)" if len(self.batch_sizes) > 1 and not self.is_sure else ""
        if self.batches is None:
            return f"batches{of}"
        count = f"{self.batches:.3g}"
        return f"{count} {'batch' if count == '1' else 'batches'}{of}"


def work_of(run: RunLog) -> StepWork:
    """What a step of a run takes, as far as it is known."""
    counts = run.rank.metric(BATCH_COUNT)[run.rank.step() != SETUP]
    counts = counts[np.isfinite(counts)]
    some = counts[counts > 0]  # a step may be made of the batch of the one before
    loaders, is_sure = _training(run)
    sizes: set[Any] = {one.get("batch_size") for one in loaders}
    lengths = [one["batches"] for one in loaders if one.get("batches")]
    return StepWork(
        float(counts.mean()) if len(some) else None,
        () if None in sizes else tuple(sorted(sizes)),
        bool(run.info.get("loaders")),
        min(lengths, default=None),
        float(np.median(some)) if len(some) else None,
        is_sure,
    )


def _training(run: RunLog) -> tuple[list[Mapping[str, Any]], bool]:
    """The loaders that gave batches to steps, if that is known: else all may have."""
    batches = run.rank.columns(BATCHES, ("for_step", "loader"))
    own = np.asarray(batches["for_step"], np.int64) != UNKNOWN
    serials = np.unique(np.asarray(batches["loader"], np.int64)[own])
    loaders = list(run.info.get("loaders", ()))
    if not len(serials) or lacking(run, run.rank, BATCHES):
        return loaders, len(loaders) < 2
    return [one for one in loaders if one.get("serial") in serials], True


class WorkRatio(NamedTuple):
    """How the steps of two sides differ in what they take.

    Attributes:
        ratio: data that a step of B takes, over that of one of A.
        off: by how much that may be off, as a share: small last batches.
        unit: what the ratio is of: "step", where as far as is known they take the same; "sample";
            or "batch", where loaders do not say how many samples one has.
        told: how they differ, in words; "" if they do not.
        unknown: why there is no such ratio; "" if there is.
    """

    ratio: float = 1.0
    off: float = 0.0
    unit: str = "step"
    told: str = ""
    unknown: str = ""


SAME_WORK = WorkRatio()


def work_ratio(old: Sequence[StepWork], new: Sequence[StepWork]) -> WorkRatio:
    """How the steps of two sides differ in what they take, each of one run or several."""
    for name, side in zip("AB", (old, new), strict=True):
        for one in side[1:]:
            if not _is_same(side[0], one):
                told = f"a step of {name} has {side[0].told()}, and another has {one.told()}"
                return WorkRatio(unknown=told)
    a, b = old[0], new[0]
    if _is_same(a, b):
        return SAME_WORK._replace(off=_off(a, b))
    told = f"a step of A has {a.told()}, and one of B has {b.told()}"
    ratio = 1.0 if a.batches is None or b.batches is None else b.batches / a.batches
    if not a.batch_sizes and not b.batch_sizes:
        return WorkRatio(ratio, 0.0, "batch", told)
    if not len(a.batch_sizes) == len(b.batch_sizes) == 1:
        return WorkRatio(unknown=told)
    off = max(_lacking(one) for one in (*old, *new))
    if off >= MOST_OFF:
        count = min(one.in_pass for one in (*old, *new) if one.in_pass)
        few = "one batch, which" if count == 1 else f"{count} batches, the last of which"
        return WorkRatio(unknown=f"{told}; a pass has {few} may be smaller")
    return WorkRatio(ratio * b.batch_sizes[0] / a.batch_sizes[0], off, "sample", told)


def _lacking(work: StepWork) -> float:
    """Share of the samples of whole batches that a pass may lack: most of its last batch."""
    return 1 / work.in_pass if work.in_pass else 0.0


def _off(a: StepWork, b: StepWork) -> float:
    """By how much their numbers of batches differ, as a share; as far as is known."""
    if a.batches is None or b.batches is None:
        return 0.0
    return 1 - min(a.batches, b.batches) / max(a.batches, b.batches)


def _is_same(a: StepWork, b: StepWork) -> bool:
    """Whether two steps take as much, as far as is known."""
    return _off(a, b) <= SAME and len({a.batch_sizes, b.batch_sizes} - {()}) <= 1
