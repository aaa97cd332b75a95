"""Numbers as people read them."""

from __future__ import annotations

import pytest

from trainobs.core.text import bar, duration, percent, quantity, size


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (0.4, "0.40 ns"),
        (999, "999 ns"),
        (999.9, "1.00 us"),
        (1_000, "1 us"),
        (12_345, "12.3 us"),
        (999_499, "999 us"),
        (999_999, "1.00 ms"),
        (1.5e9, "1.50 s"),
        (120e9, "120 s"),
        (121e9, "2 min 1 s"),
        (3_725e9, "1 h 2 min"),
    ],
)
def test_a_duration(ns, text):
    assert duration(ns) == text


def test_sizes_and_counts_are_in_powers_of_1000():
    assert size(999) == "999 B"
    assert size(1_048_576) == "1.05 MB"
    assert quantity(12) == "12"
    assert quantity(54_321) == "54.3 k"


def test_a_small_share_is_told_from_nothing():
    assert [percent(share) for share in (0, 0.00012, 0.05, 0.254, 1)] == [
        "0 %",
        "0.012 %",
        "5 %",
        "25 %",
        "100 %",
    ]


def test_a_bar_shows_anything_above_zero():
    assert [bar(share, 10) for share in (0, 0.001, 0.5, 1, 3)] == [
        "",
        "#",
        "#####",
        "##########",
        "##########",
    ]
