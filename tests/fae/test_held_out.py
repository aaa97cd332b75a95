"""Held-out inputs: bounded, whole, and the same however they came together."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_array_equal

from trainobs.fae.calibration.held_out import HeldOut
from trainobs.fae.kjt.inputs import Inputs, keys_of

LIMIT = 900


def lot(seed, count, first):
    """Inputs with 0 to 3 lookups in one feature and one in another; ids tell the input."""
    random = np.random.default_rng(seed)
    numbers = np.arange(first, first + count)
    lengths = random.integers(0, 4, count)
    ids = np.repeat(numbers, lengths) * 10 + np.arange(lengths.sum()) % 7
    return numbers, keys_of(numbers, 1), Inputs(count, (ids, numbers), (lengths, None))


def told(held_out):
    """Every input with its lookups, by brute force."""
    inputs = held_out.inputs()
    ends = np.cumsum(inputs.lookups_of(0))
    parts = np.split(inputs.ids[0], ends[:-1]) if inputs.size else []
    return {int(number): part.tolist() for number, part in zip(inputs.ids[1], parts, strict=True)}


def filled(lots, limit=LIMIT):
    held_out = HeldOut(2, limit)
    for each in lots:
        held_out.add(*each)
    return held_out


def test_what_fits_is_kept_whole_and_in_order():
    lots = [lot(0, 50, 100), lot(1, 50, 0), lot(2, 50, 50)]
    held_out = filled(lots)
    assert list(told(held_out)) == list(range(150))
    given = {}
    for numbers, _, inputs in lots:
        ends = np.cumsum(inputs.lengths[0])
        parts = np.split(inputs.ids[0], ends[:-1])
        given.update(zip(numbers.tolist(), (part.tolist() for part in parts), strict=True))
    assert told(held_out) == given


def test_of_too_many_a_part_is_kept_and_the_limit_holds():
    lots = [lot(seed, 400, 400 * seed) for seed in range(12)]
    held_out = filled(lots)
    inputs = held_out.inputs()
    assert LIMIT / 4 < inputs.lookup_count <= LIMIT
    all_of_them = told(filled(lots, limit=1 << 30))
    kept = told(held_out)
    assert kept == {number: all_of_them[number] for number in kept}
    assert abs(np.mean(list(kept)) - 2400) < 500  # not the first ones


def test_order_and_merging_make_no_difference():
    lots = [lot(seed, 400, 400 * seed) for seed in range(12)]
    one = filled(lots)
    backwards = filled(lots[::-1])
    merged = filled(lots[:3])
    merged.merge(filled(lots[3:]))
    saved = HeldOut(2, LIMIT)
    saved.restore(filled(lots[:7]).arrays())
    for each in lots[7:]:
        saved.add(*each)
    for other in (backwards, merged, saved):
        for name, array in one.arrays().items():
            assert_array_equal(other.arrays()[name], array)


def test_few_inputs_merge_with_a_thinned_many():
    many = [lot(seed, 400, 400 * seed) for seed in range(12)]
    for few in range(1, 30):
        small = lot(99, few, 10_000)
        one, merged = filled([*many, small]), filled([small])
        merged.merge(filled(many))
        assert told(merged) == told(one)


def test_nothing_is_nothing():
    assert HeldOut(2, LIMIT).inputs().size == 0
    restored = HeldOut(2, LIMIT)
    restored.restore(HeldOut(2, LIMIT).arrays())
    assert restored.inputs().lookup_count == 0
