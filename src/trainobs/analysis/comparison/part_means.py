"""The mean step of runs, taken apart so that the parts add up to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trainobs.analysis.comparison.step_work import work_of
from trainobs.analysis.step_time import TAKING
from trainobs.core import labels
from trainobs.core.catalogue import named_phase_metric
from trainobs.core.catalogue.named import named_phase
from trainobs.core.records import SETUP
from trainobs.runlog.reader import RunLog
from trainobs.verdict.facts import facts_from
from trainobs.verdict.metric_names import (
    HANDOVER,
    LOADER,
    NAMED,
    OTHER,
    PHASES,
    SPLIT,
    START,
    STEP,
    WAITED_OFF_CPU,
)
from trainobs.verdict.parts import taken_over

Floats = npt.NDArray[np.float64]

FEW, MANY = 5, 10
"""Blocks of consecutive steps into which a run is cut; means of blocks hardly depend on each
other, even where steps do. With fewer steps a block, fewer blocks."""

MANY_STEPS = 200
"""Steps from which there are many blocks."""

ENOUGH_STEPS = 4 * FEW
"""Steps without which the means of blocks say nothing."""

ROUNDING = 1e-9
"""Of the step: what is left of it below this is an error of rounding."""


@dataclass(frozen=True)
class Means:
    """A time of one run, per step, ns.

    Attributes:
        all: over all steps.
        halves: over the first and the second half. Shape (2,).
        blocks: over each block of consecutive steps.
    """

    all: float
    halves: Floats
    blocks: Floats

    def __add__(self, other: Means) -> Means:
        return Means(self.all + other.all, self.halves + other.halves, self.blocks + other.blocks)

    def __sub__(self, other: Means) -> Means:
        return Means(self.all - other.all, self.halves - other.halves, self.blocks - other.blocks)

    def negative(self) -> Means:
        """What of it is below 0, the rest as 0."""
        blocks = (np.minimum(0.0, blocks) for blocks in (self.halves, self.blocks))
        return Means(min(0.0, self.all), *blocks)


class RunMeans:
    """A run in numbers that can be compared.

    Args:
        columns: metric -> values of each step, NaN for unknown; the step itself among them.

    Attributes:
        steps: how many there are.
        of: metric -> its means; nothing of what is unknown in all steps. Where it is unknown in
            some it counts as 0 there: a checkpoint that was first marked in step 99 took no time
            before.
    """

    def __init__(self, columns: Mapping[str, Floats]) -> None:
        known = np.isfinite(columns[STEP])
        self.steps = int(known.sum())
        kept = ((name, values[known]) for name, values in columns.items())
        self.of = {name: _means(values) for name, values in kept if np.isfinite(values).any()}

    @classmethod
    def from_run(cls, run: RunLog) -> RunMeans:
        """All steps but the first, in which workers, caches and kernels are made."""
        rank = run.rank
        rows = np.flatnonzero(rank.step() != SETUP)[1:]
        phases = (name for name in PHASES if name != NAMED)
        own = map(named_phase_metric, rank.phases)
        columns = rank.metrics((STEP, *phases, *own, *SPLIT, START, WAITED_OFF_CPU))
        of_steps = {name: column[rows] for name, column in columns.items()}
        off = of_steps[WAITED_OFF_CPU]
        if np.isfinite(off).any():  # where it is unknown, not all of the wait was taking over
            of_steps[WAITED_OFF_CPU] = np.where(np.isfinite(off), off, np.nanmean(off))
        means = cls(of_steps)
        if {STEP, LOADER, WAITED_OFF_CPU} <= means.of.keys():
            workers, batches = facts_from(run.info).workers, work_of(run).at_least_one
            means.of[TAKING] = _taking(means.of, workers, batches)
        return means


def _means(values: Floats) -> Means:
    values = np.nan_to_num(values)
    count = MANY if len(values) >= MANY_STEPS else min(FEW, len(values))
    halves, blocks = (
        np.array([part.mean() if len(part) else np.nan for part in np.array_split(values, number)])
        for number in (2, count)
    )
    return Means(float(values.mean()), halves, blocks)


def _taking(of: Mapping[str, Means], workers: int | None, batches: float) -> Means:
    """What taking batches over costs the training thread."""
    step, wait, off = of[STEP], of[LOADER], of[WAITED_OFF_CPU]
    return Means(
        taken_over(step.all, wait.all, off.all, workers, batches),
        taken_over(step.halves, wait.halves, off.halves, workers, batches),
        taken_over(step.blocks, wait.blocks, off.blocks, workers, batches),
    )


@dataclass
class Part:
    """A part of the step in all runs of both sides.

    Attributes:
        name: of the metric; "rest" for what is in no phase, "loader/unknown_ns" for what was
            waited for in steps whose batch is unknown.
        label: its name for people.
        runs: of each run, those of A first.
        parts: what it consists of, if that is known of all runs.
    """

    name: str
    label: str
    runs: list[Means]
    parts: list[Part] = field(default_factory=list)


def parts_of(runs: Sequence[RunMeans]) -> list[Part]:
    """The parts of the step of some runs; they add up to it in each.

    A phase that is not marked in all of them is within "everything else" in the others, and so it
    is counted there in all of them.
    """
    steps = [run.of[STEP] for run in runs]
    parts = list(_phases(runs))
    rest = [_without(step, [part.runs[i] for part in parts]) for i, step in enumerate(steps)]
    if any(abs(one.all) > ROUNDING * step.all for one, step in zip(rest, steps, strict=True)):
        parts.append(Part("rest", "in no phase", rest))
    return parts


def not_in_all(runs: Sequence[RunMeans]) -> list[str]:
    """Phases that some of the runs know, and others do not."""
    return [name for name in _marked(runs) if any(name not in run.of for run in runs)]


def causes_known(run: RunMeans) -> bool:
    """Whether it is known why the training thread waited for data."""
    return all(name in run.of for name in SPLIT)


def _marked(runs: Sequence[RunMeans]) -> list[str]:
    """Phases that any of the runs knows, but for everything else; last those that a user named."""
    known = dict.fromkeys(name for run in runs for name in run.of)
    own = (name for name in known if named_phase(name))
    return [name for name in (*PHASES, *own) if name in known and name != OTHER]


def _phases(runs: Sequence[RunMeans]) -> Iterator[Part]:
    pooled = not_in_all(runs)
    taking = _taking_of_all(runs)
    for name in _marked(runs):
        if name not in pooled:
            means = [run.of[name] for run in runs]
            is_wait = name == LOADER
            parts = list(_causes(runs, taking)) if is_wait and all(map(causes_known, runs)) else []
            if is_wait and taking:
                means = [wait - taken for wait, taken in zip(means, taking, strict=True)]
            yield Part(name, labels.label_of(name), means, parts)
            if is_wait and any(one.all for one in taking):
                yield Part(TAKING, labels.TAKING, taking)
    others = [[run.of[name] for name in (OTHER, *pooled) if name in run.of] for run in runs]
    if all(others):
        yield Part(OTHER, labels.LABELS[OTHER], [_sum(one) for one in others])


def _taking_of_all(runs: Sequence[RunMeans]) -> list[Means]:
    """What is no part of the wait in any of them; nothing where some do not know it."""
    return [run.of[TAKING] for run in runs] if all(TAKING in run.of for run in runs) else []


def _causes(runs: Sequence[RunMeans], taking: Sequence[Means]) -> Iterator[Part]:
    """In parts that add up: what all know of the hand-over by itself is not in that.

    Where the hand-over has less, it is in steps of which the causes are not known, or a batch was
    taken over while another one was made.
    """
    causes = {name: [run.of[name] for run in runs] for name in SPLIT}
    left = [_without(run.of[LOADER], [run.of[name] for name in SPLIT]) for run in runs]
    if all(START in run.of for run in runs):
        causes[START] = [run.of[START] for run in runs]
    for own in (causes.get(START), taking):
        if own:
            pairs = zip(causes[HANDOVER], own, strict=True)
            causes[HANDOVER] = [handed - part for handed, part in pairs]
    less = [handed.negative() for handed in causes[HANDOVER]]
    causes[HANDOVER] = [handed - lack for handed, lack in zip(causes[HANDOVER], less, strict=True)]
    left = [rest + lack for rest, lack in zip(left, less, strict=True)]
    for name, means in causes.items():
        yield Part(name, labels.LABELS[name].strip(), means)
    waits = [run.of[LOADER].all for run in runs]
    if any(abs(one.all) > ROUNDING * wait for one, wait in zip(left, waits, strict=True)):
        yield Part("loader/unknown_ns", "not known", left)


def _sum(means: Sequence[Means]) -> Means:
    total = means[0]
    for one in means[1:]:
        total = total + one
    return total


def _without(whole: Means, parts: Sequence[Means]) -> Means:
    return whole - _sum(parts) if parts else whole
