"""Curves against a brute-force sort; intervals cover what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy  # `scipy.stats` takes a second to import: only where it is used
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from trainobs.access import AccessCounts, Sketch, skew
from trainobs.access.interval import wilson
from trainobs.access.skew import (
    access_curve,
    budget_share,
    served_share,
    working_set_rows,
    zipf,
)
from trainobs.access.spectrum import Spectrum

COUNTS = st.lists(st.integers(0, 30), min_size=1, max_size=60)
SOME = settings(max_examples=200, deadline=None, database=None)


def spectrum_of(counts) -> Spectrum:
    return Spectrum.from_counts(np.array(counts, np.uint64))


@SOME
@given(COUNTS)
def test_the_share_of_the_hottest_is_that_of_a_sorted_list(counts):
    rows = np.arange(len(counts) + 3)
    shares = served_share(spectrum_of(counts), rows)
    assert shares.low.tolist() == shares.high.tolist() or not sum(counts)
    if sum(counts):
        highest = np.cumsum([0, *sorted(counts, reverse=True), 0, 0]) / sum(counts)
        assert shares.low == pytest.approx(highest)
    else:
        assert np.isnan(shares.low).all()


@SOME
@given(COUNTS, st.floats(0.01, 1.0))
def test_the_working_set_is_the_fewest_rows_that_are_enough(counts, share):
    found = working_set_rows(spectrum_of(counts), share)
    if not sum(counts):
        assert math.isnan(found)
        return
    served = np.cumsum([0, *sorted(counts, reverse=True)])
    assert found == int(np.argmax(served >= share * sum(counts) - 1e-6))


@SOME
@given(COUNTS, st.integers(0, 9))
def test_with_a_sketch_the_truth_is_between_the_bounds(counts, error):
    """A sketch as Misra-Gries leaves it: what was subtracted is at most `error`."""
    truth = np.array(counts, np.uint64)
    kept = np.where(truth > error, truth - error, 0).astype(np.uint64)
    ids = np.flatnonzero(kept)
    sketch = Sketch(ids, kept[ids], error, int(truth.sum()))
    found = Spectrum.from_counts(sketch, len(counts))
    rows = np.arange(len(counts) + 1)
    bounds = served_share(found, rows)
    if truth.sum():
        exact = served_share(spectrum_of(counts), rows).low
        assert (bounds.low <= exact + 1e-9).all()
        assert (exact <= bounds.high + 1e-9).all()
        needed = working_set_rows(found, 0.5)
        assert math.isnan(needed) or needed >= working_set_rows(spectrum_of(counts), 0.5)


def test_a_spectrum_made_of_blocks_is_that_of_the_whole():
    counts = AccessCounts({"t": 300_000})
    counts.add("t", (np.random.default_rng(0).pareto(1, 500_000) * 50).astype(np.int64))
    whole, parts = Spectrum.from_counts(counts.counts("t")), counts.spectrum("t")
    assert whole.counts.tolist() == parts.counts.tolist()
    assert whole.rows.tolist() == parts.rows.tolist()
    assert (whole.total, whole.row_count) == (parts.total, parts.row_count)


def test_the_curve_goes_from_one_row_to_all():
    rows, shares = access_curve(spectrum_of([5, 1, 0, 4, 0]))
    assert rows.tolist() == [1, 2, 3, 4, 5]
    assert shares.low.tolist() == pytest.approx([0.5, 0.9, 1, 1, 1])
    assert budget_share(spectrum_of([5, 1, 0, 4, 0]), 64, 150).value == pytest.approx(0.9)


def covered(exponent, rows, lookups, drawn_rows, runs=200, confidence=0.9) -> float:
    """How often the interval holds the true exponent."""
    random = np.random.default_rng(int(exponent * 100) + rows)
    hits = 0
    for _ in range(runs):
        ranks = random.random(rows) if drawn_rows else np.arange(1, rows + 1)
        rates = ranks**-exponent
        counts = random.poisson(np.minimum(rates / rates.sum() * lookups, 1e15))
        found = zipf(Spectrum.from_counts(counts.astype(np.uint64)), confidence).exponent
        hits += found.low <= exponent <= found.high
    return hits / runs


@pytest.mark.parametrize(
    ("exponent", "rows"), [(0.5, 5000), (0.8, 3000), (1.05, 3000), (1.3, 3000)]
)
def test_the_interval_of_an_exponent_covers_at_its_rate_when_rows_are_drawn(exponent, rows):
    expected, spread = 0.9, 3 * math.sqrt(0.9 * 0.1 / 200)
    found = covered(exponent, rows, 300_000, drawn_rows=True)
    assert expected - spread <= found <= expected + spread


@pytest.mark.parametrize("exponent", [0.5, 0.8, 1.05, 1.3])
@pytest.mark.parametrize(("rows", "lookups"), [(1000, 100_000), (50_000, 400_000)])
def test_for_exactly_these_rows_it_covers_always(exponent, rows, lookups):
    assert covered(exponent, rows, lookups, drawn_rows=False, runs=30) == 1


def test_without_regard_for_noise_it_would_not_cover(monkeypatch):
    monkeypatch.setattr(skew, "_digamma", lambda x: np.log(np.maximum(x, 1e-9)))
    assert covered(0.8, 50_000, 400_000, drawn_rows=True, runs=60) < 0.7


def test_a_sketch_widens_the_interval_and_still_covers():
    random = np.random.default_rng(3)
    counts = AccessCounts({"t": 10**6}, budget_bytes=150_000)
    truth = random.permutation(10**6)
    for _ in range(40):
        ranks = np.exp(random.random(20_000) * math.log(10**6)).astype(np.int64)  # exponent 1
        counts.add("t", truth[ranks])
    spectrum = counts.spectrum("t")
    assert spectrum.error > 0
    found = zipf(spectrum)
    assert found.count_min >= 10 * spectrum.error
    assert found.exponent.low <= 1.0 <= found.exponent.high


@pytest.mark.parametrize(
    ("rows", "lookups"),
    [(1000, 100_000), (1000, 10**8), (100_000, 10**6), (10**6, 10**5), (20, 10**6)],
)
def test_rows_that_are_looked_up_alike_have_no_exponent(rows, lookups):
    counts = np.random.default_rng(2).poisson(lookups / rows, rows).astype(np.uint64)
    assert math.isnan(zipf(Spectrum.from_counts(counts)).exponent.value)


def test_the_fit_is_the_highest_point_of_the_likelihood():
    counts = np.array([10, 11, 14, 20, 31, 90, 400], np.float64)
    rows = np.array([20, 15, 9, 6, 3, 2, 1], np.float64)

    def likelihood(exponent):
        s = 1 / exponent
        chance = special.gammaln(counts - s) - special.gammaln(counts + 1) - math.log(exponent)
        return float((rows * (chance + special.gammaln(10) - special.gammaln(10 - s))).sum())

    fit = skew._fit(counts, rows, 10, 0.95).value
    assert likelihood(fit) > max(likelihood(fit * 0.999), likelihood(fit * 1.001))


def test_the_chances_of_all_counts_add_up_to_one():
    s, k = 1 / 0.8, np.arange(10, 3_000_000)
    chance = s * np.exp(
        special.gammaln(k - s)
        - special.gammaln(k + 1)
        + special.gammaln(10)
        - special.gammaln(10 - s)
    )
    assert chance.sum() == pytest.approx(1, abs=1e-4)


def test_digamma_is_scipys():
    x = np.array([1e-6, 0.1, 1.0, 1.4616, 9.99, 10.0, 1e3, 1e12])
    assert skew._digamma(x) == pytest.approx(special.digamma(x), rel=1e-11, abs=1e-11)


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10), (4443, 10_000)])
def test_the_interval_of_a_share_is_scipys(hits, trials):
    expected = scipy.stats.binomtest(hits, trials).proportion_ci(0.9, "wilson")
    found = wilson(hits, trials, 0.9)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert found.value == hits / trials


def test_of_nothing_nothing_is_known():
    empty = spectrum_of([0, 0])
    assert math.isnan(wilson(0, 0).value)
    assert math.isnan(zipf(empty).exponent.value)
    assert math.isnan(budget_share(empty, 4, 4).value)
