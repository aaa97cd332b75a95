"""The sample of inputs is uniform, whole and bounded."""

from __future__ import annotations

import numpy as np
import pytest

from trainobs.access import AccessCounts
from trainobs.core.errors import SettingError

TABLES = {"a": 10**6, "b": 10**6, "c": 10**6}
BUDGET = 60_000


def batch(first: int, size: int, pooling: int = 3):
    """Inputs whose lookups tell which input they are: number * 10 + key, so often as they tell."""
    numbers = np.arange(first, first + size)
    lengths = np.stack([numbers % pooling, numbers % 2, np.ones_like(numbers)])
    ids = [np.repeat(numbers * 10 + key, lengths[key]) for key in range(3)]
    return np.concatenate(ids), lengths


def offer(counts: AccessCounts, first: int, size: int, batch_size: int = 100, **where) -> None:
    for begin in range(first, first + size, batch_size):
        ids, lengths = batch(begin, batch_size)
        counts.add_inputs(["c", "a", "c"], ids, lengths, **where)


def numbers_of(sample) -> list[int]:
    """Numbers of the inputs of a sample, each of which must be whole."""
    assert len(sample.ids) == sample.offsets[-1]
    found = []
    for begin, end in zip(sample.offsets, sample.offsets[1:], strict=False):
        ids, tables = sample.ids[begin:end].tolist(), sample.tables[begin:end].tolist()
        number = ids[-1] // 10
        assert ids == [*[number * 10] * (number % 3), *[number * 10 + 1] * (number % 2), ids[-1]]
        assert ids[-1] == number * 10 + 2
        assert tables == [*[2] * (number % 3), *[0] * (number % 2), 2]
        found.append(number)
    assert len(set(found)) == len(found)
    return found


def test_while_all_fit_all_are_kept():
    counts = AccessCounts(TABLES, budget_bytes=BUDGET)
    offer(counts, 0, 50, batch_size=10)
    (sample,) = counts.inputs().values()
    assert sorted(numbers_of(sample)) == list(range(50))
    assert sample.seen == 50


def test_of_more_a_uniform_sample_is_kept_whole():
    kept = np.zeros(3000)
    for seed in range(150):
        counts = AccessCounts(TABLES, budget_bytes=BUDGET, seed=seed)
        offer(counts, 0, 1500)
        other = AccessCounts(TABLES, budget_bytes=BUDGET, seed=1000 + seed)
        offer(other, 1500, 1500)
        counts.merge(other)
        (sample,) = counts.inputs().values()
        assert sample.seen == 3000
        kept[numbers_of(sample)] += 1
    # Parts of 300: how often theirs are kept is the same but for chance.
    parts = kept.reshape(10, 300).sum(axis=1)
    expected = parts.mean()
    assert 0.01 < expected / (300 * 150) < 0.2
    assert (np.abs(parts - expected) < 4 * np.sqrt(expected)).all()
    by_size = [kept[np.arange(3000) % 6 == rest].mean() for rest in range(6)]
    assert max(by_size) < 1.2 * min(by_size)  # neither large nor small inputs are preferred


def test_one_enormous_batch_takes_no_more_than_its_share():
    counts = AccessCounts(TABLES, budget_bytes=BUDGET, seed=1)
    offer(counts, 0, 50_000, batch_size=50_000)
    (sample,) = counts.inputs().values()
    assert sample.nbytes <= BUDGET // 4
    assert len(numbers_of(sample)) > 20
    assert sample.seen == 50_000


def test_an_input_that_is_larger_than_the_memory_is_left_out():
    counts = AccessCounts(TABLES, budget_bytes=BUDGET, seed=1)
    counts.add_inputs(["a"], np.arange(10_000), np.array([[10_000]]))
    (sample,) = counts.inputs().values()
    assert (len(sample), sample.seen) == (0, 1)


def test_epochs_are_kept_apart_the_first_and_the_latest():
    counts = AccessCounts(TABLES, budget_bytes=BUDGET, seed=1)
    for epoch in range(7):
        offer(counts, 1000 * epoch, 1000, epoch=epoch)
    offer(counts, 0, 100, epoch=2)  # too late
    samples = counts.inputs()
    assert list(samples) == [0, 4, 5, 6]
    for epoch, sample in samples.items():
        assert {number // 1000 for number in numbers_of(sample)} == {epoch}
        assert sample.seen == 1000
    assert sum(sample.nbytes for sample in samples.values()) <= BUDGET // 4


def test_tables_are_found_again_where_they_have_another_order():
    counts = AccessCounts({"c": 10**6, "x": 5}, budget_bytes=BUDGET)
    other = AccessCounts(TABLES, budget_bytes=BUDGET)
    offer(other, 0, 20, batch_size=10)
    counts.merge(other)
    (sample,) = counts.inputs().values()
    names = list(counts.tables)
    assert {names[table] for table in sample.tables.tolist()} == {"a", "c"}
    last = sample.offsets[1:] - 1
    assert {names[table] for table in sample.tables[last].tolist()} == {"c"}


@pytest.mark.parametrize(
    ("tables", "size", "shape"),
    [(["a"], 3, (2, 2)), (["a", "b"], 3, (2, 2)), (["a"], 4, (4,)), (["z"], 1, (1, 1))],
)
def test_lengths_that_do_not_fit_are_refused(tables, size, shape):
    counts = AccessCounts(TABLES)
    with pytest.raises(SettingError, match="cannot "):
        counts.add_inputs(tables, np.zeros(size, np.int64), np.ones(shape, np.int64))
    assert counts.inputs() == {}


@pytest.mark.parametrize(
    ("ids", "lengths"),
    [
        (np.zeros(1), np.array([[1]])),
        (np.zeros(1, np.int64), np.array([[2, -1]])),
        (np.zeros(1, np.int64), [[1]]),
        (np.zeros(1, np.int64), np.array([[0.5, 0.5]])),
    ],
)
def test_ids_and_lengths_that_are_none_are_refused(ids, lengths):
    counts = AccessCounts(TABLES)
    with pytest.raises(SettingError, match="cannot sample"):
        counts.add_inputs(["a"], ids, lengths)
    assert counts.inputs() == {}
