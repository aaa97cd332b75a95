"""How unevenly the rows of a table are looked up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainobs.access.interval import normal_quantile
from trainobs.access.spectrum import Spectrum
from trainobs.core.quotients import UNKNOWN, Interval

FITTED_ROWS_MIN = 30
"""Fewer say nothing about an exponent."""
FITTED_COUNT_MIN = 10
"""Below that a count says more about chance than about its row."""
TOGETHER_MAX = 1.5
"""Where more lookups of a row come together, what comes when decides what its count is."""


@dataclass(frozen=True)
class AccessShares:
    """Shares of lookups between two bounds, which are equal where counts are exact."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True)
class Zipf:
    """The exponent a of counts that fall with their rank r as r^-a.

    Attributes:
        exponent: the estimate and its confidence interval.
        row_count: rows that were fitted: those looked up most.
        count_min: the lowest count among them.
    """

    exponent: Interval
    row_count: int
    count_min: int


def served_share(spectrum: Spectrum, rows: ArrayLike) -> AccessShares:
    """The share of lookups that the hottest rows serve, for each number of `rows`.

    These are points of the cumulative distribution of accesses; rows are whole numbers or not.
    """
    wanted = np.asarray(rows, np.float64)
    if not spectrum.total:
        return AccessShares(np.full(wanted.shape, np.nan), np.full(wanted.shape, np.nan))
    ranks = np.concatenate(([0], np.cumsum(spectrum.rows)))
    lookups = np.concatenate(([0.0], np.cumsum(spectrum.counts * spectrum.rows.astype(np.float64))))
    low = np.interp(wanted, ranks, lookups)
    high = low + np.minimum(wanted, spectrum.row_count) * spectrum.error
    return AccessShares(low / spectrum.total, np.minimum(high / spectrum.total, 1.0))


def access_curve(spectrum: Spectrum, points: int = 100) -> tuple[NDArray[np.int64], AccessShares]:
    """Numbers of rows from one to all, evenly in the logarithm, and what that many serve."""
    steps = np.geomspace(1, max(spectrum.row_count, 1), points)
    rows = np.unique(np.round(steps).astype(np.int64))
    return rows, served_share(spectrum, rows)


def budget_share(spectrum: Spectrum, row_bytes: int, budget_bytes: int) -> Interval:
    """The share of lookups served by the hottest rows of this table that fit a byte budget."""
    shares = served_share(spectrum, budget_bytes // row_bytes)
    low, high = float(shares.low), float(shares.high)
    return Interval(low, low, high)


def working_set_rows(spectrum: Spectrum, share: float) -> float:
    """The fewest rows that serve at least `share` of the lookups.

    NaN where a sketch has too few rows to tell. With a sketch it is the number that is certain to
    be enough.
    """
    lookups = np.cumsum(spectrum.counts * spectrum.rows.astype(np.float64))
    needed = share * spectrum.total
    at = int(np.searchsorted(lookups, needed - 1e-9 * spectrum.total))
    if not spectrum.total or at == len(lookups):
        return math.nan
    before = float(lookups[at - 1]) if at else 0.0
    rows_before = int(spectrum.rows[:at].sum())
    missing = (needed - before) / float(spectrum.counts[at])
    return rows_before + min(max(math.ceil(missing - 1e-9), 0), int(spectrum.rows[at]))


def zipf(spectrum: Spectrum, confidence: float = 0.95, together: float = 1.0) -> Zipf:
    """The exponent of Zipf's law, by maximum likelihood over the rows looked up most.

    A regression of counts on ranks is biased, since the ranks come from the counts (C. Pilgrim and
    T. Hills, Bias in Zipf's law estimators, 2021). Here counts are Poisson about rates of density
    rate^(-1/a - 1), which is Zipf's law with exponent a as seen from the rows. The chance of a
    count k, given that it is at least m, is then in closed form

        P(k) = (1/a) Gamma(k - 1/a) Gamma(m) / (Gamma(k + 1) Gamma(m - 1/a)),

    Hill's estimator for counts that have noise. m is the highest of `FITTED_COUNT_MIN`, ten times
    the error of a sketch, and a count that at most half of the rows reach. Where the table ends so
    close below m that chance carries its last rows over it, this is a quarter, an eighth, ...

    Args:
        spectrum: of a table.
        confidence: of the interval.
        together: lookups of a row that come at a time, see `lookups_together`: a count is taken for
            so many fewer independent ones.

    Returns:
        NaN where more than `TOGETHER_MAX` come at a time, or nobody knows how many, and where fewer
        than `FITTED_ROWS_MIN` rows are left, as for rows that are all looked up alike. The interval
        comes from the curvature of the likelihood. It takes the rows for a draw from a population:
        other items, or another period. For exactly these rows it is too wide. With a sketch it also
        holds what its error can do.

    Notes:
        Real tables follow the law over a part of their ranks only; `access_curve` tells more.
    """
    if not together <= TOGETHER_MAX:
        return Zipf(UNKNOWN, 0, 0)
    limit = spectrum.row_count // 2
    fitted_min = math.ceil(FITTED_COUNT_MIN * together)
    while True:
        count_min = max(fitted_min, 10 * spectrum.error, _reached_by(spectrum, limit))
        head = spectrum.counts >= count_min
        row_count = int(spectrum.rows[head].sum())
        if row_count < FITTED_ROWS_MIN or np.count_nonzero(head) < 2:
            return Zipf(UNKNOWN, row_count, count_min)
        counts = spectrum.counts[head].astype(np.float64)
        rows = spectrum.rows[head].astype(np.float64)
        exact, *rest = (
            _fit((counts + shift) / together, rows, (count_min + shift) / together, confidence)
            for shift in sorted({0, spectrum.error})
        )
        # By the law the table's last row has this part of the rate of the last that is fitted.
        last = count_min * (row_count / spectrum.row_count) ** exact.value
        spread = math.sqrt(last * together)
        if count_min - last >= _reach(row_count / spectrum.row_count) * spread:
            return Zipf(_hull(exact, *rest), row_count, count_min)
        limit = min(limit, row_count) // 2


def _reached_by(spectrum: Spectrum, limit: int) -> int:
    """The lowest count that at most `limit` rows reach."""
    beyond = int(np.searchsorted(np.cumsum(spectrum.rows), limit, "right"))
    return int(spectrum.counts[beyond]) + 1 if beyond < len(spectrum.counts) else 1


def _reach(share: float) -> float:
    """By how many standard deviations chance lifts the highest `share` of equal rows, and two."""
    return 2 - min(0.0, NormalDist().inv_cdf(share))


def _hull(*fits: Interval) -> Interval:
    return Interval(
        sum(fit.value for fit in fits) / len(fits),
        min(fit.low for fit in fits),
        max(fit.high for fit in fits),
    )


def _fit(
    counts: NDArray[np.float64], rows: NDArray[np.float64], count_min: float, confidence: float
) -> Interval:
    """The root of the likelihood's derivative in s = 1 / a, which only falls."""

    def slope(s: float) -> float:
        gammas = _digamma(np.append(counts, count_min) - s)
        return float(rows.sum() / s - rows @ (gammas[:-1] - gammas[-1]))

    low, high = 1e-6, count_min * (1 - 1e-9)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    s, step = low, low * 1e-4
    curvature = (slope(s - step) - slope(s + step)) / (2 * step)
    # The logarithm of s is nearer to normal than s, which cannot be negative.
    half = math.exp(normal_quantile(confidence) / (s * math.sqrt(curvature)))
    return Interval(1 / s, 1 / (s * half), half / s)


def _digamma(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithmic derivative of the gamma function of positive numbers, to 1e-11.

    By recurrence over 10 and the asymptotic series from there (Abramowitz and Stegun, 6.3.18).
    """
    below: NDArray[np.float64] = (1 / (x + np.arange(10)[:, np.newaxis])).sum(0)
    x = x + 10
    square = 1 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    return np.log(x) - 0.5 / x - series - below
