"""What is known of the row of each lookup is the same in C and in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from trainobs.access import members
from trainobs.access.members import are_among, counts_at


@pytest.fixture(params=["C", "NumPy"], autouse=True)
def either(request, monkeypatch):
    if request.param == "NumPy":
        monkeypatch.setattr(members, "loops", lambda: None)
    elif members.loops() is None:
        pytest.skip("the part in C is not built")


@pytest.mark.parametrize("seed", range(40))
def test_lookups_of_some_rows_are_told(seed):
    draw = np.random.default_rng(seed)
    rows = int(draw.choice([1, 7, 8, 9, 4000]))
    some = np.flatnonzero(draw.random(rows) < draw.choice([0.0, 0.3, 1.0]))
    lookups_of = [draw.integers(0, rows, count) for count in draw.integers(0, 500, 2)]
    lookups_of.append(np.repeat(lookups_of[0], 2)[::2])  # does not lie densely
    for ids, flags in zip(lookups_of, are_among(some, rows, lookups_of), strict=True):
        assert flags.dtype == np.bool_
        assert flags.tolist() == np.isin(ids, some).tolist()


@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
def test_counts_are_those_of_their_rows(kind):
    draw = np.random.default_rng(0)
    counts = draw.integers(0, 1 << 32, 5000).astype(kind)
    for size in (0, 1, 40, 3000):
        ids = draw.integers(0, 5000, size)
        assert counts_at(ids, counts).tolist() == [int(counts[at]) for at in ids]


@pytest.mark.parametrize("bad", [8, 9, 1 << 40, (1 << 63) - 1])
def test_a_row_that_is_not_there_is_refused(bad):
    ids = np.array([0, bad, 1])
    with pytest.raises(IndexError):
        are_among(np.array([0]), 8, [ids])
    with pytest.raises(IndexError):
        are_among(ids, 8, [np.array([0])])
    with pytest.raises(IndexError):
        counts_at(ids, np.zeros(8, np.uint32))
