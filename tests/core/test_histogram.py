"""Percentiles of log2 histograms against ones worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from trainobs.core.abi import BUCKETS, CELLS_SHAPE, FileClass, Op, Role
from trainobs.core.histogram import BLOCK_READ, LATENCIES, percentile


def histogram(**counts: int) -> np.ndarray:
    """`histogram(b10=4)`: four events of 1024 to 2048 ns."""
    buckets = np.zeros(BUCKETS, np.uint64)
    for name, count in counts.items():
        buckets[int(name[1:])] = count
    return buckets


@pytest.mark.parametrize(
    ("counts", "q", "expected"),
    [
        ({"b10": 4}, 0, 2**10),
        ({"b10": 4}, 0.5, 2**10.5),  # in the middle of [1024, 2048)
        ({"b10": 4}, 1, 2**11),
        ({"b0": 1}, 1, 2),
        ({"b10": 90, "b20": 10}, 0.9, 2**11),
        ({"b10": 90, "b20": 10}, 0.95, 2**20.5),
        ({"b10": 90, "b20": 10}, 0.99, 2**20.9),
        ({"b39": 1}, 0.5, 2**39.5),
    ],
)
def test_a_percentile_lies_within_its_bucket(counts, q, expected):
    assert percentile(histogram(**counts), q) == pytest.approx(expected)


def test_leading_axes_are_independent_and_an_empty_histogram_is_nan():
    stack = np.stack([[histogram(b3=1), histogram()], [histogram(b5=2), histogram(b3=1, b5=1)]])
    np.testing.assert_allclose(percentile(stack, 0.5), [[2**3.5, np.nan], [2**5.5, 2**4]])


def test_it_agrees_with_numpy_to_within_a_bucket():
    sample = np.random.default_rng(0).lognormal(12, 1.5, 10_000)
    buckets = np.bincount(np.log2(sample).astype(int), minlength=BUCKETS).astype(np.uint64)
    for q in (0.01, 0.25, 0.5, 0.75, 0.95, 0.99):
        assert percentile(buckets, q) == pytest.approx(np.quantile(sample, q), rel=0.1)


@pytest.mark.parametrize("q", [-0.1, 99, float("nan")])
def test_a_share_outside_0_to_1_is_refused(q):
    with pytest.raises(ValueError, match="it is a share"):
        percentile(histogram(b1=1), q)


def test_a_wrong_number_of_buckets_is_refused():
    with pytest.raises(ValueError, match="39 long"):
        percentile(np.zeros(39, np.uint64), 0.5)


def test_a_distribution_sums_roles_and_where_it_says_so_file_classes():
    buckets = np.zeros((*CELLS_SHAPE, BUCKETS), np.uint64)
    buckets[Op.BLOCK_READ, FileClass.DATA, Role.MAIN, 4] = 1
    buckets[Op.BLOCK_READ, FileClass.OTHER, Role.WORKER, 4] = 2
    buckets[Op.READ, FileClass.DATA, Role.WORKER, 4] = 4
    buckets[Op.READ, FileClass.PIPE, Role.WORKER, 4] = 8
    assert BLOCK_READ.total(buckets)[4] == 3
    assert LATENCIES[0].name == "latency/data_read"
    assert LATENCIES[0].total(buckets)[4] == 4
