"""Where in a run the time lies that a verdict is about, if it does not lie in all steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainobs.core.text import percent
from trainobs.replay.metric_columns import Floats
from trainobs.verdict.summed_steps import FEW, MOST, WINDOW, SummedSteps

ALL = 0.9
"""Share of the time from which on it lies in some steps alone; below it does mostly."""

TIMES = 2.0
"""How many times as much a step must take after a change as before it, or before it as after."""

LITTLE = 0.1
"""Share of the longer time before or after a change below which the other counts as nothing."""

EXPLAINED = 0.6
"""Share of the differences between steps that a change at one moment has to explain."""

EDGE = 4
"""Blocks before and after a change, at least."""

SIDE = 0.1
"""Share of them before and after it, at least: workers are done some batches before the end."""

REGULAR = 0.8
"""Share of the distances between long steps that are the same, if they come regularly; and of as
many steps as would be long if they came so all the time."""

ROUNDS = 4
"""Distances between long steps from which on they may be called regular."""

ALTERNATE = 2
"""Period of steps of two kinds that take turns, as of two models: neither does anything more."""

USUAL = 0.25
"""Share of the steps that are shorter than a usual one, however often there is a long one."""


def when(summed: SummedSteps, names: tuple[str, ...]) -> str:
    """Where the time of some metrics lies, such as "since step 120"; "" for everywhere.

    Args:
        summed: the steps.
        names: times, which are added up.
    """
    sample = summed.sample()
    values = np.nansum([sample.columns[name] for name in names], axis=0)
    if len(values) < 2 * EDGE or _end_early(summed, names):
        return ""
    # What came once may lie outside the sample. It is of no epoch, though in one.
    of_run = once(summed, names)
    if of_run or values.sum() <= 0:
        return of_run
    of_run = _changed(summed, names)
    first = _first_epoch(values, sample.epochs) if summed.is_whole else ""
    return first or of_run or _as_epochs_begin(values, sample.epochs) or _rare(summed, values)


def _end_early(summed: SummedSteps, names: tuple[str, ...]) -> bool:
    """Whether many steps do not know a time that others know, as after a service has ended.

    It may have gone on in them.
    """
    return any(0 < summed.known_share(name) < 1 - LITTLE for name in names)


class UnevenTime(NamedTuple):
    """What some steps took more than the others.

    Attributes:
        ns: a step, over all steps; 0 if it is in no few steps, nor in steps that come regularly.
        where: which steps they are: "in few steps", or "in every 5th step"; "in some steps" that
            come regularly for a while.
    """

    ns: float
    where: str


def in_some_steps(summed: SummedSteps, names: tuple[str, ...], less: tuple[str, ...]) -> UnevenTime:
    """What few steps took more than the others, or what every so many of them did.

    Args:
        summed: the steps.
        names: times, which are added up.
        less: times that are taken from these, where they are known.
    """
    sample, mean = summed.sample().columns, summed.mean()
    values = np.nansum([sample[name] for name in names], axis=0)
    values = np.maximum(0.0, values - np.nansum([sample[name] for name in less], axis=0))
    is_long = _longer(values)
    period = _period(summed, is_long)
    where = f"in {_every(period, is_long) or 'some steps'}" if period else "in few steps"
    if period is None:
        is_long = values > TIMES * np.median(values)
        if is_long.mean() > FEW:
            return UnevenTime(0.0, "")
    # Of the mean of all steps: the sample of a long run may have missed the few.
    whole = np.nansum([mean[name] for name in names]) - np.nansum([mean[name] for name in less])
    return UnevenTime(max(0.0, float(whole - values[~is_long].mean())), where)


def _longer(values: Floats) -> npt.NDArray[np.bool_]:
    """The steps nearer to those in which most of the time lies than to usual ones."""
    usual = float(np.quantile(values, USUAL))
    long = float((values**2).sum() / max(1.0, values.sum()))
    return values > max(TIMES * usual, (usual + long) / 2)


def _period(summed: SummedSteps, is_long: npt.NDArray[np.bool_]) -> int | None:
    """How many steps there are from one long step to the next, if nearly always as many.

    Args:
        summed: the steps.
        is_long: those of the sample, which are all of a short run, and windows of a long one.
    """
    window = len(is_long) if len(is_long) == len(summed) else WINDOW
    windows = np.split(is_long, range(window, len(is_long), window))
    gaps = np.concatenate([np.diff(np.flatnonzero(window)) for window in windows])
    if len(gaps) < ROUNDS:
        return None
    lengths, counts = np.unique(gaps, return_counts=True)
    most = int(counts.argmax())
    is_regular = counts[most] >= REGULAR * len(gaps)
    return int(lengths[most]) if is_regular and lengths[most] > ALTERNATE else None


def _every(period: int | None, is_long: npt.NDArray[np.bool_]) -> str:
    """How often long steps come; "" where they do not come so often all the time."""
    if period is None or is_long.mean() * period < REGULAR:
        return ""
    return f"every {_ordinal(period)} step"


def _ordinal(number: int) -> str:
    teen = number // 10 % 10 == 1
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _first_epoch(values: Floats, epochs: npt.NDArray[np.int64]) -> str:
    first = epochs == epochs[0]
    is_first = values[first].sum() >= ALL * values.sum() and first.mean() <= 0.5
    return "in the first epoch only" if is_first else ""


def _as_epochs_begin(values: Floats, epochs: npt.NDArray[np.int64]) -> str:
    """A cost of epochs: workers start in their first step, and may end in the one before it."""
    is_first = np.diff(epochs, prepend=epochs[0]) != 0
    is_last = np.diff(epochs, append=epochs[-1] + 1) != 0
    for here, where in (
        (is_first, "in the first step of an epoch"),
        (is_first | is_last, "where epochs end and begin"),
    ):
        share = values[here].sum() / values.sum()
        if EDGE <= here.sum() <= len(epochs) / 3 and share >= MOST:
            return f"{_mostly(share)}{where}"
    return ""


def once(summed: SummedSteps, names: tuple[str, ...]) -> str:
    """The step of a cost that came once, such as "in step 3 alone", in a long run the block; or "".

    Args:
        summed: the steps.
        names: times, which are added up.
    """
    steps, values = _course(summed, names)
    times, ends = steps * values, np.cumsum(steps)
    at = int(times.argmax())
    if not 0 < MOST * times.sum() <= times[at] or steps[at] > FEW * ends[-1]:
        return ""
    return _within(summed, int(ends[at] - steps[at]), int(ends[at] - 1), times[at] / times.sum())


def _within(summed: SummedSteps, first: int, last: int, share: float) -> str:
    """That a share of a cost lies from one step to another."""
    here = _steps(summed, first, last)
    return f"{here} alone" if share >= ALL else f"mostly {here}"


def _steps(summed: SummedSteps, first: int, last: int) -> str:
    """Some of the steps by their numbers, where these tell which they are.

    A loop may count from 0 again in each epoch, or by samples.
    """
    if not summed.are_consecutive:
        return "in one step" if first == last else "in some steps in a row"
    if first == last:
        return f"in step {summed.first + first}"
    return f"in steps {summed.first + first} to {summed.first + last}"


def _mostly(share: float) -> str:
    return "" if share >= ALL else "mostly "


def _rare(summed: SummedSteps, values: Floats) -> str:
    """A cost that comes every so many steps, or a few times one soon after another.

    Of what comes mostly in one part of the run nobody knows how often it will come.
    """
    largest = np.sort(values)[::-1]
    needed = int(np.searchsorted(np.cumsum(largest), MOST * values.sum()))
    is_long = values >= largest[needed] / 2
    at = np.flatnonzero(is_long)
    count, within = len(at), int(at[-1] - at[0]) + 1
    if count < 2 or count > FEW * len(values):
        return ""
    is_whole = len(values) == len(summed)
    if within <= FEW * len(values) and is_whole:
        share = values[at[0] : at[-1] + 1].sum() / values.sum()
        return _within(summed, int(at[0]), int(at[-1]), share)
    first, last = _densest(values)
    if last - first < FEW * len(values):
        return f"mostly {_steps(summed, first, last)}" if is_whole else ""
    regularly = _every(_period(summed, is_long), is_long)
    often = regularly or f"about 1 step of {round(len(values) / count)}"
    return f"{_mostly(values[at].sum() / values.sum())}in {often}"


def _densest(values: Floats) -> tuple[int, int]:
    """The first and the last of the fewest consecutive steps that have most of a cost."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.searchsorted(sums, sums[:-1] + MOST * sums[-1])  # of each begin, one behind the last
    found = np.flatnonzero(ends < len(sums))
    first = int(found[np.argmin(ends[found] - found)])
    return first, int(ends[first]) - 1


def _course(summed: SummedSteps, names: tuple[str, ...]) -> tuple[npt.NDArray[np.int64], Floats]:
    """How the times went: step by step, or where there are too many, block by block."""
    sample = summed.sample()
    if len(sample.epochs) == len(summed):
        values = np.nansum([sample.columns[name] for name in names], axis=0)
        return np.ones(len(values), np.int64), values
    steps, values = summed.course(names[0])
    for name in names[1:]:
        values = values + summed.course(name)[1]
    return steps, values


def _grown(steps: npt.NDArray[np.int64], values: Floats) -> float:
    """What of the spread of values a straight line explains: what grows has changed at no moment.

    Args:
        steps: that each value is for.
        values: less their mean.
    """
    at = np.cumsum(steps) - steps / 2
    at = at - np.average(at, weights=steps)
    return float((steps * at * values).sum() ** 2 / (steps * at**2).sum())


def _changed(summed: SummedSteps, names: tuple[str, ...]) -> str:
    """The one moment that divides the run best."""
    steps, values = _course(summed, names)
    if len(steps) < 2 * EDGE:
        return ""
    weights, total = np.cumsum(steps), np.cumsum(steps * values)
    cuts = np.arange(EDGE, len(steps) - EDGE + 1)
    before = total[cuts - 1] / weights[cuts - 1]
    after = (total[-1] - total[cuts - 1]) / (weights[-1] - weights[cuts - 1])
    between = weights[cuts - 1] * (weights[-1] - weights[cuts - 1]) * (after - before) ** 2
    best = int(between.argmax())
    mean = float(np.average(values, weights=steps))
    spread = float((steps * (values - mean) ** 2).sum())
    divided = float(between[best]) / int(weights[-1])
    if spread <= 0 or divided < max(EXPLAINED * spread, _grown(steps, values - mean)):
        return ""
    if min(cuts[best], len(steps) - cuts[best]) < SIDE * len(steps):
        return ""
    at = int(weights[cuts[best] - 1])
    more, less = max(after[best], before[best]), min(after[best], before[best])
    if more <= TIMES * less:
        return ""
    where = f"{percent(at / int(weights[-1]))} of the steps"
    if summed.are_consecutive:
        where = f"step {summed.first + at}"
    told = f"{'since' if after[best] > before[best] else 'until'} {where}"
    return told if less < LITTLE * more else f"more {told}"
