"""What a ratio is where there is nothing to divide by."""

from __future__ import annotations

import math

import numpy as np

from trainobs.core.quotients import Quotient, divided


def test_nothing_of_the_whole_is_no_ratio_and_no_warning() -> None:
    found = divided([6, 0, 3, math.nan, 1], np.array([4, 5, 0, 2, math.nan]))
    np.testing.assert_array_equal(found, [1.5, 0, math.nan, math.nan, math.nan])


def test_a_complement_is_what_is_left_of_one() -> None:
    assert float(Quotient("a", "b").of(1, 4)) == 0.25
    assert float(Quotient("a", "b", complement=True).of(1, 4)) == 0.75
    assert math.isnan(Quotient("a", "b", complement=True).of(0, 0))
