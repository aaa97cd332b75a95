"""Student's t and Welch's interval, held against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy  # `scipy.stats` takes a second to import: only where it is used
from scipy import special

from trainobs.analysis.comparison.welch import (
    Estimate,
    estimate,
    half_width,
    incomplete_beta,
    student_quantile,
)


@pytest.mark.parametrize("freedom", [1, 1.3, 2, 4.7, 18, 100.5, 1e4])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.9975, 0.9999])
def test_quantiles_of_students_t_are_those_of_scipy(confidence, freedom):
    expected = scipy.stats.t.ppf((1 + confidence) / 2, freedom)
    assert student_quantile(confidence, freedom) == pytest.approx(expected, rel=1e-8)


def test_with_many_degrees_of_freedom_it_is_the_normal_quantile():
    assert student_quantile(0.95, 1e12) == pytest.approx(scipy.stats.norm.ppf(0.975), rel=1e-5)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (0.5, 2), (3, 7.5), (0.5, 500)])
def test_the_incomplete_beta_function_is_that_of_scipy(a, b):
    for x in (0.0, 1e-6, 0.1, 0.5, 0.9, 1 - 1e-6, 1.0):
        expected = special.betainc(a, b, x)
        assert incomplete_beta(x, a, b) == pytest.approx(expected, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("counts", [(3, 3), (2, 7), (10, 10)])
def test_the_interval_is_that_of_scipys_welch_test(counts):
    random = np.random.default_rng(1)
    a, b = (random.normal(10, spread, n) for spread, n in zip((1, 4), counts, strict=True))
    low, high = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert half_width(estimate(a), estimate(b), 0.95) == pytest.approx((high - low) / 2)


def test_one_value_is_taken_to_be_spread_like_the_others():
    random = np.random.default_rng(2)
    several, one = random.normal(10, 1, 4), [12.0]
    low, high = scipy.stats.ttest_ind(several, one).confidence_interval(0.95)
    for sides in ((several, one), (one, several)):
        assert half_width(*map(estimate, sides), 0.95) == pytest.approx((high - low) / 2)


def test_without_a_spread_nothing_is_known_and_without_variance_all():
    assert math.isnan(half_width(estimate([1.0]), estimate([2.0]), 0.95))
    assert half_width(Estimate(1, 0, 4), Estimate(2, 0, 4), 0.95) == 0
