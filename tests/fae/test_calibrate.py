"""Calibration: predictions hold, budgets are kept, nothing but the data changes the result."""

from __future__ import annotations

import random as python_random
import re

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch.utils.data import DataLoader
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.fae.skewed import (
    BUDGET,
    KEYS,
    ROWS,
    Batches,
    Clicks,
    click_loader,
    collate,
    kjt,
    matrix,
    quiet,
    tables,
)
from trainobs.core.errors import FAEError
from trainobs.fae import calibrate
from trainobs.fae.calibration.part import Permutation
from trainobs.fae.kjt.inputs import blocks_of, keys_of, parts_of


def hot_share(profile, ids):
    """Shares of inputs and lookups that are hot, by brute force."""
    slots = (profile.slots(table.name) for table in profile.tables)
    hot = np.stack([own[row] >= 0 for own, row in zip(slots, ids, strict=True)])
    return hot.all(axis=0).mean(), hot.mean()


def test_hot_rows_are_the_most_counted_ones_of_the_counted_half():
    ids = matrix(0, 40_000)
    profile = quiet(Batches(ids), margin=0, seed=5)
    counted = parts_of(keys_of(blocks_of(np.arange(40_000)), 5)) < 2
    assert profile.made["inputs_counted"] == counted.sum()
    assert profile.hot_bytes <= BUDGET < profile.hot_bytes + 20
    kept = []
    for table, row in zip(profile.tables, ids, strict=True):
        counts = np.bincount(row[counted], minlength=table.row_count)
        cold = np.setdiff1d(np.arange(table.row_count), table.hot_ids)
        if len(cold):
            kept.append((counts[table.hot_ids].min(), counts[cold].max()))
    lowest, highest = (min(a for a, _ in kept), max(b for _, b in kept))
    assert lowest >= highest
    assert profile.tables[0].is_wholly_hot  # the small one


def test_data_without_a_lookup_is_refused():
    empty = KeyedJaggedTensor(
        list(KEYS),
        torch.empty(0, dtype=torch.int64),
        lengths=torch.zeros(len(KEYS) * 8, dtype=torch.int32),
    )
    with pytest.raises(FAEError, match="no lookup in 1[0-9]* inputs that were held out"):
        quiet([empty] * 8)


def test_predictions_cover_fresh_data_as_often_as_they_say():
    fresh = matrix(10_000, 400_000)
    misses = 0
    for seed in range(60):
        profile = quiet(Batches(matrix(seed, 12_000), 4000), margin=0, confidence=0.9, seed=seed)
        inputs, lookups = hot_share(profile, fresh)
        expected = profile.predictions
        misses += not expected.all_hot_ratio.low <= inputs <= expected.all_hot_ratio.high
        misses += not expected.hot_lookup_ratio.low <= lookups <= expected.hot_lookup_ratio.high
    assert misses <= 12 + 3.7 * 12**0.5  # of 120, 12 are to be expected


@pytest.mark.parametrize("longest", [1, 40])
def test_bytes_that_hot_rows_spare_are_as_sure_as_told_however_bags_differ(longest):
    fresh = matrix(10_000, 400_000)
    mean_length = bag_lengths(np.random.default_rng(10_000), 2_000_000, longest).mean()
    misses = 0
    for seed in range(40):
        batches = [bags(seed, number, longest) for number in range(8)]
        profile = quiet(batches, margin=0, confidence=0.9, seed=seed)
        spared = 16 * len(KEYS) * mean_length * hot_share(profile, fresh)[1]
        expected = profile.predictions.hot_bytes_per_input
        misses += not expected.low <= spared <= expected.high
    assert misses <= 4 + 3.7 * 4**0.5  # of 40, 4 are to be expected


def bag_lengths(random, count, longest):
    """Most bags are short, and few as long as may be; an input's are equally long."""
    return np.minimum(random.zipf(1.8, count), longest)


def bags(seed, number, longest):
    random = np.random.default_rng([seed, number])
    lengths = bag_lengths(random, 500, longest)
    ids = matrix(1000 * (seed + 1) + number, lengths.sum())
    return KeyedJaggedTensor(
        list(KEYS), torch.from_numpy(ids.ravel()), lengths=torch.from_numpy(np.tile(lengths, 3))
    )


def test_neighbours_of_counted_inputs_do_not_judge_them():
    """In a log forty inputs of a session are neighbours: half of them would know the others."""
    fresh = matrix(10_000, 400_000)
    misses = 0
    for seed in range(10):
        ids = np.repeat(matrix(seed, 1500), 40, axis=1)
        profile = quiet(Batches(ids), margin=0, seed=seed)
        expected = profile.predictions.all_hot_ratio
        misses += not expected.low <= hot_share(profile, fresh)[0] <= expected.high
    assert misses <= 1


def test_blocks_of_neighbours_are_many_and_long():
    blocks = blocks_of(np.arange(100_000))
    _, sizes = np.unique(blocks, return_counts=True)
    assert np.all(np.diff(blocks) >= 0)
    assert sizes.max() == 1024
    for count in (64, 1000, 30_000):
        _, sizes = np.unique(blocks[:count], return_counts=True)
        assert sizes.max() <= count / 32 + 1


def test_predictions_from_counted_inputs_would_be_found_too_good():
    # The control of the test above: a choice judged by the inputs it was made from.
    ids = matrix(3, 12_000)
    profile = quiet(Batches(ids, 4000), margin=0, confidence=0.9, seed=3)
    counted = parts_of(keys_of(blocks_of(np.arange(12_000)), 3)) < 2
    inputs, _ = hot_share(profile, ids[:, counted])
    fresh, _ = hot_share(profile, matrix(10_000, 400_000))
    assert inputs > fresh + 0.01
    assert inputs > profile.predictions.all_hot_ratio.high


def test_rows_outside_the_interval_of_the_threshold_are_on_the_side_it_says():
    rows = ROWS[2]
    rates = np.bincount(matrix(500, 4_000_000, (rows,))[0], minlength=rows) / 4.0  # in a million
    above, below, between = [], [], []
    for seed in range(25):
        profile = quiet(
            [kjt(matrix(seed, 20_000, (rows,)), ("k",))],
            of=tables((rows,), ("k",)),
            budget=8000,
            margin=0,
            seed=seed,
        )
        hot = profile.slots("t_k") >= 0
        threshold = profile.predictions.threshold
        assert threshold.low < threshold.value < threshold.high
        above.append(hot[(rates > threshold.high) & (rates < 1.3 * threshold.high)])
        below.append(hot[(rates < threshold.low) & (rates > 0.7 * threshold.low)])
        between.append(hot[(rates >= threshold.low) & (rates <= threshold.high)])
    assert np.mean(~np.concatenate(above)) < 0.005
    assert np.mean(np.concatenate(below)) < 0.005
    assert 0.1 < np.mean(np.concatenate(between)) < 0.9  # it is not wider than it must be


def test_reading_ends_when_the_sample_is_large_enough():
    ids = matrix(1, 400_000)
    loose = Batches(ids)
    profile = quiet(loose, margin=0.03)
    assert loose.given < len(loose) / 4
    assert profile.made["ended"] == "the sample was large enough"
    for share in (profile.predictions.all_hot_ratio, profile.predictions.hot_lookup_ratio):
        assert width_of_what_was_read(share, profile) <= 2 * 0.03
    tight = Batches(ids)
    quiet(tight, margin=0.01)
    assert tight.given > 2 * loose.given
    all_of_it = Batches(ids[:, :20_000])
    assert quiet(all_of_it, margin=0).made["ended"] == "all data were read"
    assert all_of_it.given == len(all_of_it)


def width_of_what_was_read(share, profile):
    unread = profile.predictions.unread_ratio
    return (share.high - share.low - unread) / (1 - unread)


def test_a_wide_choice_needs_more_inputs_than_its_intervals_do():
    # Intervals are narrow after few inputs; rows are still being found.
    ids = matrix(2, 200_000, slope=0.6)
    source = Batches(ids)
    profile = quiet(source, budget=200_000, margin=0.02)
    needed = source.given * 256
    share = profile.predictions.all_hot_ratio
    assert width_of_what_was_read(share, profile) < 0.6 * 2 * 0.02
    half = quiet(Batches(ids[:, : needed // 4]), budget=200_000, margin=0)
    inputs, _ = hot_share(half, matrix(77, 100_000, slope=0.6))
    better, _ = hot_share(profile, matrix(77, 100_000, slope=0.6))
    assert better > inputs + 0.02


def test_the_same_arguments_give_the_same_profile_and_others_another():
    ids = matrix(4, 20_000)
    one, again, other = (quiet(Batches(ids), seed=seed) for seed in (1, 1, 2))
    assert one.fingerprint == again.fingerprint
    assert one.predictions.all_hot_ratio == again.predictions.all_hot_ratio
    assert one.fingerprint != other.fingerprint


def test_little_memory_counts_large_tables_as_far_as_it_goes():
    rows = (40, 3000, 20_000_000)
    ids = matrix(4, 60_000, rows)
    exact = quiet(Batches(ids), of=tables(rows), margin=0)
    bounded = quiet(Batches(ids), of=tables(rows), margin=0, memory="1MB")
    assert bounded.hot_bytes <= BUDGET
    assert bounded.predictions.input_count < exact.predictions.input_count
    fresh = matrix(5, 100_000, rows)
    assert hot_share(bounded, fresh)[0] > hot_share(exact, fresh)[0] - 0.02
    share = bounded.predictions.all_hot_ratio
    assert share.low < hot_share(bounded, fresh)[0] < share.high


def test_batches_and_order_make_no_difference_to_counts():
    ids = matrix(4, 20_000)
    sizes = [quiet(Batches(ids, size), margin=0).fingerprint for size in (1000, 333)]
    shuffled = quiet(click_loader(ids, 500), margin=0).fingerprint
    workers = quiet(click_loader(ids, 500), margin=0, workers=2).fingerprint
    assert len(set(sizes)) == 1
    assert shuffled == workers != sizes[0]  # whose neighbours serve for the same


def test_a_loader_of_single_samples_is_sampled_at_random():
    # In order, the first half of the data looks up other rows than the second.
    ids = matrix(6, 60_000)
    ids[2, 30_000:] = ROWS[2] - 1 - ids[2, 30_000:]
    profile = quiet(click_loader(ids), margin=0.03, confidence=0.9)
    assert profile.made["order"] == "random"
    assert profile.made["inputs_read"] < 40_000
    hot = profile.tables[2].hot_ids
    low, high = np.sum(hot < ROWS[2] // 2), np.sum(hot >= ROWS[2] // 2)
    assert 0.6 < low / high < 1.6


def test_a_permutation_has_every_number_once_and_no_order():
    for count in (1, 2, 3, 1000, 4097):
        order = Permutation(count, 7)(np.arange(count))
        assert_array_equal(np.sort(order), np.arange(count))
    order = Permutation(100_000, 7)(np.arange(100_000))
    assert abs(np.corrcoef(order, np.arange(100_000))[0, 1]) < 0.02
    assert not np.array_equal(order, Permutation(100_000, 8)(np.arange(100_000)))


def test_random_generators_are_left_as_they_were():
    def states():
        return torch.rand(1).item(), python_random.random(), np.random.rand()

    def seed():
        torch.manual_seed(1)
        python_random.seed(1)
        np.random.seed(1)

    seed()
    untouched = states()
    for options in ({"shuffle": True}, {"sampler": torch.arange(4000).tolist()}):
        seed()
        quiet(click_loader(matrix(0, 4000), **options), margin=0)
        assert states() == untouched


@pytest.mark.parametrize(("made", "found"), [(lambda s: s[:8], 8), (lambda s: s * 2, 512)])
def test_a_loader_that_makes_more_or_fewer_inputs_than_samples_is_refused(made, found):
    loader = DataLoader(Clicks(matrix(0, 4000)), 256, collate_fn=lambda s: collate(made(s)))
    with pytest.raises(FAEError, match=f"found: {found} inputs in a batch of 256 samples"):
        quiet(loader)


def test_a_progress_bar_tells_the_inputs(capsys):
    calibrate(Batches(matrix(0, 9000)), tables(), BUDGET, margin=0)
    assert re.search(r"calibrate: 9\.00k inputs", capsys.readouterr().err)


def test_lengths_below_zero_are_refused_even_if_their_sum_is_right():
    lengths = torch.tensor([3, -1, 1, 1, 1, 1])
    batch = KeyedJaggedTensor(list(KEYS), torch.zeros(6, dtype=torch.int64), lengths=lengths)
    with pytest.raises(FAEError, match="lengths from -1 that add up to 6, and 6 ids"):
        quiet([batch], margin=0)
