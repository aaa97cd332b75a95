"""Bounds of shares."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainobs.core.quotients import UNKNOWN, Interval

RUNS = 10
"""Runs of neighbouring steps whose spread tells how alike steps are that follow each other."""


def wilson(hits: float, trials: float, confidence: float = 0.95) -> Interval:
    """The share of `hits`, with Wilson's interval; NaN without trials."""
    return wilson_around(hits / trials, trials, confidence) if trials else UNKNOWN


def wilson_around(share: float, trials: float, confidence: float) -> Interval:
    """Wilson's interval for a binomial proportion around a share seen in so many trials.

    Source: E. B. Wilson, Probable inference, JASA 22 (1927).
    """
    z = normal_quantile(confidence)
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    spread = share * (1 - share) / trials + z * z / (4 * trials * trials)
    half = z * math.sqrt(spread) / (1 + z * z / trials)
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return Interval(share, min(low, share), max(high, share))  # of 0 and 1 they are rounded


def normal_quantile(confidence: float) -> float:
    """Standard deviations to either side that hold a normal variable with this probability."""
    return NormalDist().inv_cdf((1 + confidence) / 2)


def trials_by_steps(
    value: float,
    parts: NDArray[np.floating[Any]],
    wholes: NDArray[np.floating[Any]],
    steps: NDArray[np.int64],
    confidence: float,
) -> float:
    """Independent trials that would spread as much as a ratio does from step to step.

    The spread is that of the linearised ratio (W. G. Cochran, Sampling Techniques, 3rd ed., sec.
    6.4 and 9A.1, clusters) over inputs, over steps, or over `RUNS` runs of neighbouring steps,
    whichever is largest. Where there is none to see, each step is one trial.

    Args:
        value: the ratio.
        parts: of each input, from 0 to its whole.
        wholes: of each input.
        steps: number of the step of each input.
        confidence: of the interval that is made from the trials.
    """
    _, of = np.unique(steps, return_inverse=True)
    residuals = parts - value * wholes
    squares, total = float(np.square(residuals).sum()), float(wholes.sum())
    sums = np.bincount(of, residuals)
    found = [len(sums) * lost_by_few(len(sums), confidence)]
    for runs in (len(sums), RUNS):
        if runs == len(sums) or 2 * runs <= len(sums):
            edges = np.linspace(0, len(sums), runs, endpoint=False).astype(np.intp)
            trials = independent_trials(value, total, squares, np.add.reduceat(sums, edges))
            if trials is None:
                return found[0]
            found.append(trials * lost_by_few(runs, confidence))
    return min(found[1:])


def lost_by_few(blocks: int, confidence: float) -> float:
    """What of their trials so few blocks are worth, whose spread is not known better.

    The square of the normal quantile over Student's t (M. Abramowitz, I. A. Stegun, Handbook of
    Mathematical Functions, 26.7.5).
    """
    z, free = normal_quantile(confidence), blocks - 1
    wider = (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return float((z / (z + wider)) ** 2)


def independent_trials(
    value: float, total: float, squares: float, blocks: NDArray[np.floating[Any]]
) -> float | None:
    """Trials by the spread of residuals; None if there is none to see: one trial an input.

    Args:
        value: the ratio.
        total: sum of the wholes.
        squares: of the residuals of inputs, added up.
        blocks: sums of residuals of blocks; of one block they tell nothing.
    """
    spread = squares
    if len(blocks) > 1:
        spread = max(spread, float(np.square(blocks).sum()) * len(blocks) / (len(blocks) - 1))
    if not (0 < value < 1 and spread > 0):
        return None
    return value * (1 - value) * total**2 / spread
