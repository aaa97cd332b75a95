"""Bounds of shares."""

from __future__ import annotations

import math
from statistics import NormalDist

from trainobs.core.quotients import UNKNOWN, Interval


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
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def normal_quantile(confidence: float) -> float:
    """Standard deviations to either side that hold a normal variable with this probability."""
    return NormalDist().inv_cdf((1 + confidence) / 2)
