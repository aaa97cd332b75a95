"""Inputs of several batches: what C takes out of them is what NumPy takes."""

from __future__ import annotations

import numpy as np
import pytest

from trainobs.core.errors import FAEError
from trainobs.core.native import loops
from trainobs.fae.calibration import input_selection
from trainobs.fae.calibration.input_selection import selected_inputs
from trainobs.fae.calibration.outside import IdLimit, OutsideIds, limits_of
from trainobs.fae.kjt.inputs import Inputs
from trainobs.fae.profile.model_tables import ModelTable

needs_c = pytest.mark.skipif(loops() is None, reason="the part in C is not built")
ROWS = (1, 50, 1 << 40)
LIMITS = [IdLimit(f"t{rows}", rows, f"f{rows}") for rows in ROWS]


@pytest.fixture
def in_numpy(monkeypatch):
    """Call it to leave C alone from then on."""
    return lambda: monkeypatch.setattr(input_selection, "loops", lambda: None)


def random_batch(draw: np.random.Generator) -> Inputs:
    """Of any number of inputs, none included; features with one lookup each or with any number."""
    size = int(draw.choice([0, 1, 7, 300]))
    if draw.random() < 0.3:
        matrix = np.stack([draw.integers(0, rows, size) for rows in ROWS])
        return Inputs(size, matrix, (None,) * len(ROWS))
    ids, lengths = [], []
    for rows in ROWS:
        each = draw.integers(0, 4, size) if draw.random() < 0.4 else None
        ids.append(draw.integers(0, rows, size if each is None else each.sum()))
        lengths.append(each)
    return Inputs(size, tuple(ids), tuple(lengths))


def random_choices(draw: np.random.Generator, count: int) -> list[np.ndarray]:
    shares = (0.0, 0.25, 0.5, 1.0)[: int(draw.integers(1, 5))]
    return [np.flatnonzero(draw.random(count) < share) for share in shares]


def assert_equal(one: list[Inputs], other: list[Inputs]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.size == b.size
        for mine, theirs in zip((*a.ids, *a.lengths), (*b.ids, *b.lengths), strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                assert mine.dtype == theirs.dtype == np.int64
                assert np.array_equal(mine, theirs)


@needs_c
@pytest.mark.parametrize("seed", range(150))
def test_c_takes_the_inputs_that_numpy_takes(seed, in_numpy, monkeypatch):
    draw = np.random.default_rng(seed)
    batches = [random_batch(draw) for _ in range(int(draw.integers(1, 6)))]
    choices = random_choices(draw, sum(batch.size for batch in batches))
    outside, by_numpy = OutsideIds(LIMITS), OutsideIds(LIMITS)
    monkeypatch.setattr(outside, "without", None)  # C does it, or this fails
    in_c = selected_inputs(batches, outside, choices)
    in_numpy()
    assert_equal(in_c, selected_inputs(batches, by_numpy, choices))
    assert outside.counts.seen.tolist() == by_numpy.counts.seen.tolist()
    assert not any(np.shares_memory(own, of) for own in in_c[-1].ids for of in batches[0].ids)


@pytest.mark.parametrize("is_in_c", [True, False])
@pytest.mark.parametrize("bad", [-1, -(1 << 63), 50, (1 << 63) - 1])
@pytest.mark.parametrize("lengths", [None, np.array([0, 3, 0, 1])])
def test_an_id_that_is_no_row_is_refused_wherever_it_is(bad, lengths, is_in_c, in_numpy):
    if not is_in_c:
        in_numpy()
    fine = Inputs(4, (np.zeros(4, np.int64),) * 3, (None,) * 3)
    for place in range(4):
        ids = np.full(4, 49)
        ids[place] = bad
        wrong = fine._replace(ids=(fine.ids[0], ids, fine.ids[2]), lengths=(None, lengths, None))
        with pytest.raises(FAEError, match=r"outside of table 't50'\n.*\n") as refused:
            selected_inputs([fine, wrong, fine], OutsideIds(LIMITS, True), [np.array([0])])
        assert f"id {bad} (" in str(refused.value)
        assert "1 of 4 are outside); the table has 50 rows" in str(refused.value)
        outside = OutsideIds(LIMITS)
        (part,) = selected_inputs([fine, wrong, fine], outside, [np.arange(3, 9)])
        kept = np.delete(ids, place)
        assert part.ids[1].tolist() == [0, *kept, 0]
        owner = np.repeat(np.arange(4), [1] * 4 if lengths is None else lengths)
        left = np.bincount(np.delete(owner, place), minlength=4)
        assert part.lengths[1].tolist() == [1, *left, 1]
        assert outside.count == 1


@needs_c
def test_an_array_that_c_cannot_read_is_left_to_numpy():
    strided = np.arange(8)[::2]
    narrow = strided.astype(np.int32)
    batch = Inputs(4, (np.zeros(4, np.int64), strided, narrow), (None,) * 3)
    (part,) = selected_inputs([batch], OutsideIds(LIMITS), [np.array([1, 3])])
    assert [own.tolist() for own in part.ids] == [[0, 0], [2, 6], [2, 6]]


@needs_c
@pytest.mark.parametrize("lengths", [[3, -1, 2], [5, 0, 0], [1 << 62, 1 << 62, 4 - (1 << 63)]])
def test_c_reads_no_id_by_lengths_that_do_not_fit(lengths):
    batch = Inputs(3, (np.arange(4),), (np.array(lengths),))
    library = loops()
    assert library is not None
    for at in range(3):
        places = np.array([at])
        found = input_selection._in_c(library, [batch], [IdLimit("t", 9, "f")], [places])
        if found is not None:  # what is wrong lies behind the input
            assert found[0].ids[0].tolist() == list(
                range(sum(lengths[:at]), sum(lengths[: at + 1]))
            )
            assert lengths == [3, -1, 2]
            assert at == 0


@needs_c
@pytest.mark.parametrize("places", [[-1], [3], [1, 0]])
def test_c_takes_no_input_that_is_not_there(places):
    batch = Inputs(3, (np.arange(3),), (None,))
    library = loops()
    assert library is not None
    assert (
        input_selection._in_c(library, [batch], [IdLimit("t", 9, "f")], [np.array(places)]) is None
    )


def test_the_limit_of_a_feature_is_its_smallest_table():
    tables = [
        ModelTable("a", 9, 4, ("f", "g"), 0, 16, False),
        ModelTable("b", 5, 4, ("g",), 0, 16, False),
    ]
    assert limits_of(tables, ("f", "g")) == [("a", 9, "f"), ("b", 5, "g")]
