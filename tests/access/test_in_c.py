"""Loops over counters in C do what their references in NumPy do."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.architecture.rooms import ROOT
from trainobs.access import AccessCounts
from trainobs.access import dense as dense_module
from trainobs.access import ranking as ranking_module
from trainobs.access import spectrum as spectrum_module
from trainobs.access.dense import Dense
from trainobs.access.ranking import Ranking
from trainobs.access.spectrum import Spectrum, histogram
from trainobs.core.native import loops
from trainobs.core.switch import PURE

pytestmark = pytest.mark.skipif(loops() is None, reason="the part in C is not built")


@pytest.fixture
def in_numpy(monkeypatch):
    """Call it to leave C alone from then on."""

    def leave() -> None:
        for module in (dense_module, ranking_module, spectrum_module):
            monkeypatch.setattr(module, "loops", lambda: None)

    return leave


def random_counts(draw: np.random.Generator) -> np.ndarray:
    """Of a table: skewed, some of them higher than what a histogram has a place for."""
    rows = int(draw.choice([0, 1, 9, 3000]))
    counts = np.minimum(draw.pareto(0.3, rows), 2**32 - 1).astype(np.uint32)
    counts[draw.random(rows) < draw.choice([0.0, 0.5, 0.99])] = 0
    return counts


@pytest.mark.parametrize("seed", range(60))
def test_c_counts_what_numpy_counts(seed, in_numpy):
    draw = np.random.default_rng(seed)
    rows = int(draw.choice([1, 40, 5000]))
    parts = [draw.integers(-1, rows + 1, draw.integers(0, 3000)) for _ in range(6)]
    parts[1] = np.repeat(parts[1], 2)[::2]  # does not lie densely
    places = [draw.integers(0, len(part), len(part) // 2) for part in parts[3:]]
    places[0] = np.repeat(places[0], 2)[::2]

    def count() -> tuple[Dense, list[int]]:
        dense = Dense(rows)
        dense._low[::7] = (1 << 32) - 9000  # near the end of 32 bits
        outside = [dense.add(part) for part in parts[:3]]
        outside += [dense.add(part, at) for part, at in zip(parts[3:], places, strict=True)]
        return dense, outside

    one, outside = count()
    in_numpy()
    other, expected = count()
    assert outside == expected
    assert np.array_equal(one.counts(), other.counts())
    assert one._carried == other._carried


def test_c_writes_to_no_row_that_is_not_there():
    dense = Dense(3)
    dense._low = np.zeros(5, np.uint32)[1:4]
    assert dense.add(np.array([2, 3, -1, 1 << 40, 0])) == 3
    assert dense._low.base.tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("place", [-1, 2])
def test_c_reads_no_place_that_is_not_there(place):
    dense = Dense(3)
    with pytest.raises(IndexError):
        dense.add(np.array([0, 1, 2])[:2], np.array([0, place]))
    assert dense.counts().tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("budget", [10_000, 10**6])
def test_lookups_at_some_places_are_counted(budget, kind):
    ids, at = np.arange(100, dtype=kind), np.array([5, 99, 5, 0])
    counts = AccessCounts({"t": 5_000, "u": 90}, budget_bytes=budget)
    for table in ("t", "u"):
        counts.add(table, ids, at)
        hottest, times = counts.hottest(table, 9)
        known = [5, 0, 99] if table == "t" else [5, 0]
        assert (hottest.tolist(), times.tolist()) == (known, [2, 1, 1][: len(known)])
    assert (counts.outside("t"), counts.outside("u"), counts.total("u")) == (0, 1, 3)


@pytest.mark.parametrize("seed", range(120))
def test_c_finds_the_spectrum_and_the_hot_rows_that_numpy_finds(seed, in_numpy):
    draw = np.random.default_rng(seed)
    counts = random_counts(draw)
    in_c = Spectrum.from_counts(counts)
    widths = [8, 4]
    ranking = Ranking.from_spectra([in_c, in_c], widths)
    filled = ranking.fill(int(draw.integers(0, 13 * len(counts) + 2)))
    found = [limit.rows(counts, in_c) for limit in filled.limits]
    in_numpy()
    in_python = Spectrum.from_counts(counts)
    for name in ("counts", "rows"):
        one, other = getattr(in_c, name), getattr(in_python, name)
        assert np.array_equal(one, other)
        assert one.dtype == other.dtype
    assert (in_c.total, in_c.row_count) == (in_python.total, in_python.row_count)
    assert in_c.total == counts.sum(dtype=np.uint64)
    for limit, ids in zip(filled.limits, found, strict=True):
        assert np.array_equal(ids, limit.rows(counts, in_python))
        assert ids.dtype == np.int64


def test_a_row_at_the_limit_that_has_no_room_is_not_hot(in_numpy):
    counts = np.array([3, 1, 2, 1, 0, 1], np.uint32)
    limit = Ranking.from_spectra([Spectrum.from_counts(counts)], [1]).fill(4).limits[0]
    assert limit.rows(counts, Spectrum.from_counts(counts)).tolist() == [0, 1, 2, 3]
    in_numpy()
    assert limit.rows(counts, Spectrum.from_counts(counts)).tolist() == [0, 1, 2, 3]


def test_counts_that_c_cannot_read_are_left_to_numpy():
    counts = np.array([1, 9, 0, 9, 1], np.uint32)
    for other in (counts.astype(np.uint64), np.repeat(counts, 2)[::2]):
        assert [column.tolist() for column in histogram(other)] == [[9, 1], [2, 2]]


def test_an_environment_without_c_does_without():
    script = "from trainobs.core.native import loops; print(loops() is None)"
    for pure, is_python in {"": "False", "1": "True"}.items():
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            env={**os.environ, PURE: pure},
            cwd=ROOT,
        )
        assert done.stdout == f"{is_python}\n", done.stderr
