"""Whether two means differ: Welch's t, for samples of different size and spread."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainobs.access.interval import normal_quantile

MOST_FREEDOM = 1e6
"""Degrees of freedom from which Student's t is taken as normal: it is, to six digits."""


class Estimate(NamedTuple):
    """What is known of a mean.

    Attributes:
        mean: the mean.
        variance: of the mean, not of what it is the mean of; NaN where there is one value alone.
        freedom: degrees of freedom of that variance.
    """

    mean: float
    variance: float
    freedom: int


def estimate(values: npt.ArrayLike) -> Estimate:
    """The mean of independent values."""
    values = np.asarray(values, np.float64)
    count = len(values)
    variance = float(values.var(ddof=1)) / count if count > 1 else math.nan
    return Estimate(float(values.mean()), variance, count - 1)


def half_width(a: Estimate, b: Estimate, confidence: float) -> float:
    """How far the difference of two means may be off; NaN where neither spread is known.

    Source: B. L. Welch, The generalization of Student's problem when several different population
    variances are involved, Biometrika 34 (1947). Where one side has one value, both are taken to
    be spread alike.
    """
    spreads = [one for one in (a, b) if one.freedom > 0]
    if not spreads:
        return math.nan
    if len(spreads) == 1:  # each value of that side varies by its variance times their number
        known = spreads[0]
        variance = known.variance * (known.freedom + 1) + known.variance
        return student_quantile(confidence, known.freedom) * math.sqrt(variance)
    variance = a.variance + b.variance
    if variance == 0:
        return 0.0
    freedom = variance**2 / sum(one.variance**2 / one.freedom for one in spreads)
    return student_quantile(confidence, freedom) * math.sqrt(variance)


def relative(one: Estimate) -> Estimate:
    """The logarithm of a mean above zero, to first order."""
    return Estimate(math.log(one.mean), one.variance / one.mean**2, one.freedom)


def student_quantile(confidence: float, freedom: float) -> float:
    """Standard errors to either side that hold Student's t with this probability.

    The probability of |T| < t is I_y(1/2, freedom/2) with y = t^2 / (freedom + t^2), DLMF 8.17. It
    is concave in t, so that Newton's steps from the normal quantile never go too far.
    """
    half = min(freedom, MOST_FREEDOM) / 2
    log_peak = math.lgamma(half + 0.5) - math.lgamma(half) - 0.5 * math.log(2 * math.pi * half)
    t, step = normal_quantile(confidence), math.inf
    while step > 1e-9 * t:  # the next is squared
        square = t * t / (2 * half)
        missing = confidence - incomplete_beta(square / (1 + square), 0.5, half)
        step = missing / (2 * math.exp(log_peak - (half + 0.5) * math.log1p(square)))
        t += step
    return t


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b)."""
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast below this alone
        return 1.0 - incomplete_beta(1 - x, b, a)
    if x <= 0:
        return 0.0
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) / a
    fraction = 1.0  # DLMF 8.17.22, from its end to its beginning
    for m in range(_DEPTH, 0, -1):
        fraction = 1.0 + m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)) / fraction
        n = m - 1
        below = (a + 2 * n) * (a + 2 * n + 1)
        fraction = 1.0 - (a + n) * (a + b + n) * x / below / fraction
    return front / fraction


_DEPTH = 100
"""Pairs of terms of the continued fraction: more than 12 digits need for what is asked here."""
