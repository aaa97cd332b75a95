"""Stated intervals cover the truth as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainobs.access.interval import normal_quantile
from trainobs.fae.calibration.intervals import count_interval, mean_upper, ratio
from trainobs.fae.kjt.inputs import InputUse, blocks_of, keys_of, parts_of

TRIALS = 2000


def allowed_misses(confidence):
    """More misses than this would happen once in ten thousand such tests."""
    mean = TRIALS * (1 - confidence)
    return mean + 3.7 * math.sqrt(mean)


def misses(draw, truth, confidence):
    intervals = (ratio(*draw(np.random.default_rng(seed)), confidence) for seed in range(TRIALS))
    return sum(not low <= truth <= high for _, low, high in intervals)


@pytest.mark.parametrize("truth", [0.004, 0.1, 0.5, 0.97, 1.0])
def test_of_independent_inputs(truth):
    def draw(random):
        return (random.random(1500) < truth).astype(float), np.ones(1500)

    assert misses(draw, truth, 0.95) <= allowed_misses(0.95)


def test_of_inputs_with_many_lookups_that_go_together():
    def draw(random):
        lengths = random.integers(1, 40, 1500)
        return random.binomial(lengths, random.beta(2, 3, 1500)).astype(float), lengths

    assert misses(draw, 0.4, 0.95) <= allowed_misses(0.95)


def test_of_neighbours_that_are_alike():
    def draw(random):
        shares = np.repeat(random.beta(2, 3, 300), 20)  # sessions of 20 inputs
        return (random.random(6000) < shares).astype(float), np.ones(6000)

    assert misses(draw, 0.4, 0.95) <= allowed_misses(0.95)


@pytest.mark.parametrize(("count", "session"), [(1000, 1), (1000, 20), (20_000, 200)])
def test_of_inputs_held_out_by_runs_of_neighbours(count, session):
    numbers = np.arange(count)
    trials, missed = 500, 0
    for seed in range(trials):
        random = np.random.default_rng(seed)
        lookups = random.integers(1, 5, count)
        shares = random.beta(2, 3, count // session + 1)
        hot = random.binomial(lookups, np.repeat(shares, session)[:count])
        kept = parts_of(keys_of(blocks_of(numbers), seed)) == InputUse.REPORTING
        begins = np.flatnonzero(np.diff(np.append(-1, blocks_of(numbers[kept]))))
        low, high = ratio(hot[kept], lookups[kept], 0.95, begins)[1:]
        missed += not low <= hot.sum() / lookups.sum() <= high
    assert missed <= 0.05 * trials + 3.7 * math.sqrt(0.05 * trials)


@pytest.mark.parametrize("hits", [0, 1])
def test_an_interval_holds_the_share_that_was_seen(hits):
    for count in range(1, 500):
        low, high = ratio(np.full(count, hits), np.ones(count), 0.9)[1:]
        assert low <= hits <= high


def test_a_single_run_of_neighbours_tells_next_to_nothing():
    low, high = ratio(np.ones(500), np.ones(500), 0.95, np.array([0]))[1:]
    assert high - low > 0.7


def test_an_interval_that_is_too_narrow_is_found_out():
    def draw(random):
        shares = np.repeat(random.beta(2, 3, 300), 20)
        return (random.random(6000) < shares).astype(float), np.ones(6000)

    def shuffled(random):  # hides that neighbours are alike: intervals as of independent inputs
        parts, wholes = draw(random)
        return random.permutation(parts), wholes

    assert misses(shuffled, 0.4, 0.95) > 3 * allowed_misses(0.95)


def test_nothing_looked_up_is_unknown():
    assert all(math.isnan(each) for each in ratio(np.zeros(5), np.zeros(5), 0.9))


def test_an_interval_shrinks_as_the_root_of_the_inputs():
    random = np.random.default_rng(0)
    parts = (random.random(64_000) < 0.3).astype(float)
    few, many = (ratio(parts[:n], np.ones(n), 0.99) for n in (16_000, 64_000))
    assert (few.high - few.low) / (many.high - many.low) == pytest.approx(2, rel=0.15)


def test_a_count_is_reached_and_missed_as_rarely_as_said():
    random = np.random.default_rng(1)
    for count in (1, 2, 7, 100, 5000):
        low, high = count_interval(count, 0.99)
        assert low < count < high
        reached = np.mean(random.poisson(low, 100_000) >= count)
        missed = np.mean(random.poisson(high, 100_000) < count)
        assert reached == pytest.approx(0.005, abs=0.001)
        assert missed == pytest.approx(0.005, abs=0.001)


def test_the_upper_limit_of_a_mean_is_passed_as_rarely_as_said():
    random = np.random.default_rng(2)
    passed = sum(mean_upper(random.normal(0.1, 1, 400), 0.95) < 0.1 for _ in range(TRIALS))
    assert passed == pytest.approx(TRIALS * 0.05, abs=3.7 * math.sqrt(TRIALS * 0.05))


def test_quantiles_are_those_of_tables():
    assert normal_quantile(0.95) == pytest.approx(1.959964, abs=1e-6)
    assert normal_quantile(0.99) == pytest.approx(2.575829, abs=1e-6)


@pytest.mark.parametrize("count", [1, 2, 199, 200, 3001])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.7, 1.0])
def test_flags_have_the_interval_of_numbers(count, share):
    flags = np.sort(np.random.default_rng(count).random(count)) < share
    ones = np.broadcast_to(np.int64(1), count)
    of_flags = ratio(flags, ones, 0.99)
    for parts, wholes in ((flags * 1.0, np.ones(count)), (flags.view(np.uint8), ones)):
        assert of_flags == pytest.approx(ratio(parts, wholes, 0.99), rel=1e-9)
