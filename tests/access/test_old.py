"""Access counts of an older trainobs: `old/counts.npz`, written by commit 36a3a44."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainobs.access import AccessCounts, Sketch
from trainobs.access.hot import hot_rows, served_by_hot_rows
from trainobs.access.skew import working_set_rows, zipf

ROW_BYTES = {"exact": 16, "in/a pool": 64, "Übergröße": 16}


@pytest.fixture(scope="module")
def counts() -> AccessCounts:
    return AccessCounts.load(Path(__file__).parent / "old" / "counts.npz")


def test_its_numbers_are_those_that_were_saved(counts):
    assert dict(counts.tables) == {"exact": 500, "in/a pool": 10**9, "Übergröße": 3}
    found = {
        name: (counts.total(name), counts.outside(name), counts.error(name))
        for name in counts.tables
    }
    assert found == {
        "exact": (3998, 2, 0),
        "in/a pool": (4000, 0, 5),
        "Übergröße": (2959, 1041, 0),
    }
    hottest = [[part.tolist() for part in counts.hottest(name, 3)] for name in counts.tables]
    assert hottest == [
        [[1, 2, 4], [80, 75, 72]],
        [[3, 2, 0], [69, 66, 61]],
        [[0, 2, 1], [1039, 983, 937]],
    ]
    assert isinstance(counts.counts("in/a pool"), Sketch)


def test_its_sample_of_inputs(counts):
    (sample,) = counts.inputs().values()
    assert (len(sample), sample.seen) == (22, 800)
    assert (len(sample.ids), sample.ids.sum()) == (58, 55)
    assert counts.samples()[1][1] == 0.035063442069188544


def test_what_followed_from_it_then_follows_now(counts):
    hot = hot_rows(counts, ROW_BYTES, 3000)
    assert {name: (len(ids), ids.sum()) for name, ids in hot.items()} == {
        "exact": (128, 9338),
        "in/a pool": (14, 92),
        "Übergröße": (3, 3),
    }
    served = served_by_hot_rows(counts, ROW_BYTES, 3000)
    assert served.lookup_ratio == pytest.approx(0.559459706123939, rel=1e-12)
    assert served.all_hot.low == pytest.approx(0.7411670330319684, rel=1e-12)
    spectrum = counts.spectrum("exact")
    assert working_set_rows(spectrum, 0.5) == 71
    fitted = zipf(spectrum)
    assert (fitted.row_count, fitted.count_min) == (110, 10)
    assert fitted.exponent.value == pytest.approx(0.705063392360181, rel=1e-9)
