"""Intervals for shares of inputs and of lookups, and for counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainobs.access.interval import independent_trials, lost_by_few, wilson_around
from trainobs.core.quotients import UNKNOWN, Interval

BLOCKS = 100
"""Blocks of neighbouring inputs whose spread tells how alike neighbours are."""


def ratio(
    parts: NDArray[np.number[Any]],
    wholes: NDArray[np.number[Any]],
    confidence: float,
    begins: NDArray[np.intp] | None = None,
) -> Interval:
    """The ratio of two sums over inputs, with an interval.

    Wilson's interval, with the number of independent trials that would spread as much as this
    ratio did: an input's lookups are not independent of each other, and in data that are not
    shuffled nor are neighbouring inputs. The spread is that of the linearised ratio (Cochran,
    Sampling Techniques, 3rd ed., sec. 6.4) over inputs, or over `BLOCKS` blocks of neighbours
    where that is larger. Of inputs that were held out by runs of neighbours a run is one trial, or
    several are where there are more than `BLOCKS`; few of them spread as Student's t does.

    Args:
        parts: a number from 0 to `wholes` for each input, in the order of the data.
        wholes: of each input; for a share of inputs, ones.
        confidence: with which the interval covers the ratio in the whole data.
        begins: where such runs begin.

    Returns:
        NaN throughout where the wholes add up to nothing.
    """
    total = float(same * len(wholes) if (same := constant(wholes)) is not None else wholes.sum())
    if total == 0:
        return UNKNOWN
    edges = _edges(len(parts)) if begins is None else _runs(begins)
    if same == 1 and parts.dtype == np.bool_:
        value, trials = _of_flags(parts.view(np.bool_), edges)
    else:
        value = float(parts.sum()) / total
        trials = _trials(value, parts, wholes, edges)
    if begins is not None:
        trials = trials * lost_by_few(len(edges), confidence) if len(edges) > 1 else 1.0
    return wilson_around(value, trials, confidence)


def constant(numbers: NDArray[Any]) -> float | None:
    """What all numbers of an array are, if that can be told without a look at each of them."""
    return float(numbers[0]) if len(numbers) and numbers.strides == (0,) else None


def mean_upper(
    differences: NDArray[np.number[Any]],
    confidence: float,
    begins: NDArray[np.intp] | None = None,
) -> float:
    """What the mean of numbers, one an input, does not exceed at a confidence (one-sided).

    Args:
        differences: the numbers.
        confidence: so sure it is.
        begins: where runs of neighbours begin; see `ratio`.
    """
    count, mean = max(len(differences), 1), float(differences.mean())
    error = float(differences.std() / np.sqrt(count))
    if begins is not None and len(begins) > 1:
        blocks = np.add.reduceat(differences - mean, _runs(begins))
        spread = float(np.square(blocks).sum()) * len(blocks) / (len(blocks) - 1)
        few = lost_by_few(len(blocks), confidence)
        error = max(error, math.sqrt(spread / few) / count)
    return mean + NormalDist().inv_cdf(confidence) * error


def count_interval(count: int, confidence: float) -> tuple[float, float]:
    """Expected counts at which a Poisson count reaches `count` surely, and surely does not.

    Returns:
        `(low, high)`: below `low` it is reached with a probability of at most
        (1 - confidence) / 2, above `high` it is missed with at most that (Garwood 1936).
    """
    tail = (1 - confidence) / 2
    return _expected(count, tail), _expected(count, 1 - tail)


def _of_flags(flags: NDArray[np.bool_], edges: Sequence[int]) -> tuple[float, float]:
    """The ratio of parts that are none or one to wholes that are one each, and its trials."""
    count = len(flags)
    edges = [*edges, count]
    blocks = [int(np.count_nonzero(flags[a:b])) for a, b in pairwise(edges)]
    value = sum(blocks) / count
    squares = value * (1 - value) * count
    residuals = np.array(blocks) - value * np.diff(edges)
    return value, independent_trials(value, count, squares, residuals) or float(count)


def _trials(
    value: float,
    parts: NDArray[np.number[Any]],
    wholes: NDArray[np.number[Any]],
    edges: Sequence[int],
) -> float:
    """Independent trials that tell as much of the ratio as these inputs."""
    residuals = parts - value * (wholes if constant(wholes) is None else wholes[:1])
    blocks = np.add.reduceat(residuals, edges)
    squares = float(np.square(residuals, out=residuals).sum())
    trials = independent_trials(value, float(wholes.sum()), squares, blocks)
    return trials or float(np.count_nonzero(wholes))


def _edges(count: int) -> list[int]:
    """Where the blocks begin, of so many inputs; one block of inputs that are too few."""
    if count < 2 * BLOCKS:
        return [0]
    return [int(at) for at in np.linspace(0, count, BLOCKS, endpoint=False)]


def _runs(begins: NDArray[np.intp]) -> list[int]:
    """Where at most `BLOCKS` blocks of whole runs begin."""
    count = min(len(begins), BLOCKS)
    return [int(begins[int(at)]) for at in np.linspace(0, len(begins), count, endpoint=False)]


def _expected(count: int, probability: float) -> float:
    """The mean of a Poisson count that reaches `count` with that probability, by bisection."""
    import torch  # here, as workers of a Ray job only count

    low, high = 0.0, count + 10.0 * math.sqrt(count) + 20.0
    order = torch.tensor(float(count), dtype=torch.float64)
    for _ in range(100):
        middle = (low + high) / 2
        reached = float(torch.special.gammainc(order, torch.tensor(middle, dtype=torch.float64)))
        low, high = (middle, high) if reached < probability else (low, middle)
    return high
