"""Hot rows against brute force; shares and drift on inputs whose truth is known."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainobs.access import AccessCounts
from trainobs.access.hot import (
    all_hot_share,
    are_hot,
    drift,
    hot_rows,
    most_served,
    served_by_hot_rows,
)

TABLES = {"a": 4, "b": 40, "c": 10**9}
ROW_BYTES = {"a": 16, "b": 16, "c": 64}


@settings(max_examples=100, deadline=None, database=None)
@given(st.integers(0, 2**32), st.integers(0, 3000), st.sampled_from([20_000, 10**6]))
def test_hot_rows_are_those_with_most_lookups_for_their_bytes(seed, budget_bytes, memory):
    random = np.random.default_rng(seed)
    counts = AccessCounts(TABLES, budget_bytes=memory)
    for name, rows in TABLES.items():
        counts.add(name, (random.pareto(0.8, 60) * 5).astype(np.int64) % rows)
    ranked = [
        (-count / ROW_BYTES[name], at, row, name)
        for at, name in enumerate(TABLES)
        for row, count in zip(*(x.tolist() for x in counts.hottest(name, 10**6)), strict=True)
    ]
    expected, used = {name: [] for name in TABLES}, 0
    for _, _, row, name in sorted(ranked):
        used += ROW_BYTES[name]
        if used > budget_bytes:
            break
        expected[name].append(row)
    hot = hot_rows(counts, ROW_BYTES, budget_bytes)
    assert {name: ids.tolist() for name, ids in hot.items()} == {
        name: sorted(ids) for name, ids in expected.items()
    }
    assert sum(len(ids) * ROW_BYTES[name] for name, ids in hot.items()) <= budget_bytes


def test_only_tables_with_row_bytes_take_part():
    counts = AccessCounts(TABLES)
    counts.add("a", np.array([1, 1, 2]))
    counts.add("b", np.array([7]))
    hot = hot_rows(counts, {"b": 16}, 10**6)
    assert {name: ids.tolist() for name, ids in hot.items()} == {"b": [7]}
    assert hot_rows(counts, {}, 10**6) == {}


def inputs(seed: int, count: int, shift: int = 0, each: int = 1, budget_bytes=1 << 20):
    """Inputs with `each` lookups of each table, popular rows first from `shift` on."""
    random = np.random.default_rng(seed)
    counts = AccessCounts(TABLES, budget_bytes=budget_bytes, seed=seed)
    lengths = np.full((len(TABLES), 100), each)
    for _ in range(count // 100):
        drawn = (random.pareto(1.0, 100 * each) * 2 + shift for _ in TABLES)
        ids = [row.astype(np.int64) % n for row, n in zip(drawn, TABLES.values(), strict=True)]
        counts.add_inputs(list(TABLES), np.concatenate(ids), lengths)
    return counts.inputs()[0]


def test_an_input_is_hot_when_all_its_lookups_are():
    counts = AccessCounts(TABLES)
    #        input 0: a1 b5       input 1: a1        input 2: nothing   input 3: a9 (outside)
    ids, lengths = np.array([1, 1, 9, 5]), np.array([[1, 1, 0, 1], [1, 0, 0, 0]])
    counts.add_inputs(["a", "b"], ids, lengths)
    sample = counts.inputs()[0]

    def share(hot):
        return all_hot_share(sample, counts.tables, {n: np.array(i) for n, i in hot.items()}).value

    assert share({"a": [1], "b": [5]}) == 3 / 4
    assert share({"a": [0, 1, 2, 3], "b": [4, 6]}) == 2 / 4
    assert share({"b": [5]}) == 1 / 4
    assert share({"a": [], "c": [1]}) == 1 / 4
    hot = are_hot(sample, counts.tables, {"b": np.array([5])})
    assert np.count_nonzero(hot) == 1


def test_the_interval_of_the_all_hot_share_covers_the_share_of_all_inputs():
    everything = inputs(0, 20_000, budget_bytes=1 << 26)
    assert len(everything) == 20_000
    hot = {"a": np.arange(4), "b": np.arange(8), "c": np.arange(10)}
    truth = all_hot_share(everything, TABLES, hot).value
    assert 0.2 < truth < 0.9
    found = [inputs_of(everything, seed) for seed in range(100)]
    shares = [all_hot_share(sample, TABLES, hot, 0.9) for sample in found]
    covered = sum(share.low <= truth <= share.high for share in shares)
    assert 80 <= covered <= 98
    assert all(100 < len(sample) < 5000 for sample in found)


def inputs_of(everything, seed: int):
    """A new, smaller sample of the same inputs."""
    counts = AccessCounts(TABLES, budget_bytes=300_000, seed=seed)
    ids = everything.ids.reshape(-1, 3).T
    counts.add_inputs(list(TABLES), ids.ravel(), np.ones(ids.shape, np.int64))
    return counts.inputs()[0]


def counted(seed: int, count: int) -> AccessCounts:
    """Inputs with a lookup of each table, all in the sample; that of `c` has a long tail."""
    random = np.random.default_rng(seed)
    counts = AccessCounts(TABLES, budget_bytes=1 << 26, seed=seed)
    ids = [(random.pareto(1.0, count) * 2).astype(np.int64) % rows for rows in TABLES.values()]
    for name, of_table in zip(TABLES, ids, strict=True):
        counts.add(name, of_table)
    counts.add_inputs(list(TABLES), np.concatenate(ids), np.ones((len(TABLES), count), np.int64))
    return counts


@pytest.mark.parametrize("budget_bytes", [500, 2000, 10**9])
def test_what_hot_rows_serve_holds_for_other_inputs(budget_bytes):
    held, flattered = 0, 0
    for seed in range(60):
        counts = counted(seed, 500)
        hot = hot_rows(counts, ROW_BYTES, budget_bytes)
        others = counted(seed + 1000, 20_000).inputs()[0]
        truth = all_hot_share(others, TABLES, hot).value
        served = served_by_hot_rows(counts, ROW_BYTES, budget_bytes, 0.9)
        assert served.input_count == 500
        assert served.lookup_ratio == pytest.approx(are_hot(others, TABLES, hot).mean(), abs=0.03)
        held += served.all_hot.low <= truth <= served.all_hot.high
        naive = all_hot_share(counts.inputs()[0], TABLES, hot, 0.9)
        flattered += naive.low > truth
    assert held >= 48
    if budget_bytes == 10**9:  # every row that was seen is hot
        assert flattered == 60


@settings(max_examples=100, deadline=None, database=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_an_input_is_judged_by_the_others_alone(seed, count):
    """Where all rows fit, those are hot that another input looks up; none of table `b` here."""
    random = np.random.default_rng(seed)
    counts = AccessCounts(TABLES)
    lengths = random.integers(0, 4, (len(TABLES), count))
    ids = [random.integers(0, 4, n.sum()) for n in lengths]
    for name, of_table in zip(TABLES, ids, strict=True):
        counts.add(name, of_table)
    counts.add_inputs(list(TABLES), np.concatenate(ids), lengths)
    rows = [
        {(at, row) for at, n in enumerate(lengths) for row in np.split(ids[at], n.cumsum())[i]}
        for i in range(count)
    ]
    expected = sum(
        all(
            at != 1 and any((at, row) in rows[j] for j in range(count) if j != i) for at, row in own
        )
        for i, own in enumerate(rows)
    )
    widths = {name: width for name, width in ROW_BYTES.items() if name != "b"}
    served = served_by_hot_rows(counts, widths, 10**9)
    assert served.all_hot.value == pytest.approx(expected / count)


@pytest.mark.parametrize("memory_bytes", [1 << 26, 20_000])
def test_no_rows_within_a_budget_served_more_than_the_most(memory_bytes):
    """Where all fits: rows that were looked up once served that lookup. With sketches: more."""
    random = np.random.default_rng(0)
    ids = {name: (random.pareto(1.0, 3000) * 2).astype(np.int64) % 5000 for name in "ab"}
    counts = AccessCounts(dict.fromkeys(ids, 5000), budget_bytes=memory_bytes)
    for name, of_table in ids.items():
        counts.add(name, of_table)
    widths = {"a": 16, "b": 40}
    lookups = np.concatenate([np.bincount(ids[name], minlength=5000) for name in ids])
    of_rows = np.repeat(list(widths.values()), 5000)
    order = np.argsort(-lookups / of_rows, kind="stable")
    for budget_bytes in (16, 100, 5000, 10**6):
        hot = order[np.cumsum(of_rows[order]) <= budget_bytes]
        truth = lookups[hot].sum() / lookups.sum()
        most = most_served(counts, widths, budget_bytes)
        assert truth <= most + 1e-12
        if memory_bytes == 1 << 26:
            assert most < truth + lookups.max() / lookups.sum()
    assert most == 1
    assert np.isnan(most_served(AccessCounts({"a": 5}), {"a": 4}, 100))


def test_a_table_that_is_hot_as_a_whole_serves_all():
    counts = AccessCounts({"a": 3})
    ids = np.repeat(np.arange(3), [50, 40, 1])
    counts.add("a", ids)
    counts.add_inputs(["a"], ids, np.ones((1, len(ids)), np.int64))
    served = served_by_hot_rows(counts, {"a": 16}, 100)
    assert served.lookup_ratio == pytest.approx(90 / 91)  # the last row was unknown before
    assert served.all_hot.value == pytest.approx(90 / 91)
    assert math.isnan(served_by_hot_rows(AccessCounts({"a": 3}), {"a": 16}, 100).lookup_ratio)


@pytest.mark.parametrize("times", [3, 32, 5000])
@pytest.mark.parametrize("odd", [0, 1])
def test_a_budget_that_takes_part_of_rows_with_equal_counts_serves_that_part(times, odd):
    """Each input looks up one row; `odd`: half of the rows once more, as at the end of a run."""
    counts = AccessCounts({"a": 200}, budget_bytes=1 << 26)
    ids = np.concatenate([np.tile(np.arange(100), times), np.arange(50 * odd)])
    counts.add("a", ids)
    counts.add_inputs(["a"], ids, np.ones((1, len(ids)), np.int64))
    for rows in (2, 20, 50, 60):
        served = served_by_hot_rows(counts, {"a": 16}, rows * 16)
        truth = (rows * times + min(rows, 50 * odd)) / len(ids)
        assert served.lookup_ratio == pytest.approx(truth)
        assert served.all_hot.value == pytest.approx(served.lookup_ratio, abs=0.02)


def test_rows_with_equal_counts_are_told_for_each_table():
    """Positions, of which each input looks up all, beside a table with a long tail."""
    random = np.random.default_rng(0)
    counts = AccessCounts({"a": 50, "b": 10**6})
    ids = {"a": np.tile(np.arange(50), 200), "b": random.zipf(1.2, 10_000) % 10**6}
    for name, of_table in ids.items():
        counts.add(name, of_table)
    served = served_by_hot_rows(counts, {"a": 16}, 160)
    assert served.lookup_ratio == 0.2
    both = served_by_hot_rows(counts, dict.fromkeys(ids, 16), 16 * 60)
    hot = hot_rows(counts, dict.fromkeys(ids, 16), 16 * 60)
    others = random.zipf(1.2, 10**6) % 10**6
    truth = len(hot["a"]) / 50 / 2 + np.isin(others, hot["b"]).mean() / 2
    assert both.lookup_ratio == pytest.approx(truth, abs=0.01)


@pytest.mark.parametrize("budget_rows", [1500, 2200, 5000])
@pytest.mark.parametrize("tail", ["zipf", "flat"])
def test_what_hot_rows_serve_holds_where_the_budget_takes_few_rows_of_a_count(budget_rows, tail):
    """Few of the rows looked up twice, or once, are hot: more lookups do not come to them."""
    shares = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        ids, others = (
            random.zipf(1.3, 20_000) % 10**5 if tail == "zipf" else random.integers(0, 8000, 20_000)
            for _ in range(2)
        )
        counts = AccessCounts({"a": 10**5}, budget_bytes=1 << 26, seed=seed)
        counts.add("a", ids)
        counts.add_inputs(["a"], ids, np.ones((1, len(ids)), np.int64))
        served = served_by_hot_rows(counts, {"a": 16}, 16 * budget_rows)
        truth = np.isin(others, hot_rows(counts, {"a": 16}, 16 * budget_rows)["a"]).mean()
        shares.append((served.lookup_ratio - truth, served.all_hot.value - truth))
    assert np.abs(np.mean(shares, axis=0)).max() < 0.01


def test_without_drift_the_interval_holds_zero_at_its_rate_or_more_often():
    hits = 0
    for seed in range(100):
        before, after = (inputs(other, 600, each=3) for other in (seed, seed + 500))
        found = drift(before, after, TABLES, ROW_BYTES, 800, 0.9)
        hits += found.low <= 0 <= found.high
    assert hits >= 85


def test_drift_is_seen_and_larger_when_more_rows_change():
    before, same = inputs(1, 5000, each=3), inputs(2, 5000, each=3)
    little, much = inputs(3, 5000, 3, each=3), inputs(4, 5000, 1000, each=3)
    none, some, all_ = (
        drift(before, after, TABLES, ROW_BYTES, 800) for after in (same, little, much)
    )
    assert none.low <= 0 <= none.high
    assert abs(none.value) < 0.02
    assert none.high < some.low
    assert some.high < all_.low


def epochs(*lookups):
    """Samples of epochs whose inputs look up these rows of one table, (inputs, lookups)."""
    counts = AccessCounts({"a": 20_000}, seed=0)
    for epoch, rows in enumerate(lookups):
        counts.add_inputs(["a"], rows.ravel(), np.full((1, len(rows)), rows.shape[1]), epoch=epoch)
    return counts.inputs().values()


def zipf_rows(random, shape, shift=0):
    return (random.zipf(1.15, shape) - 1 + shift) % 20_000


@pytest.mark.parametrize("again", [True, False])
def test_inputs_that_come_again_hide_no_drift_and_are_none(again):
    """90 % of the inputs do, or are as before; the rows of the others are 5.2 % of the lookups."""
    random = np.random.default_rng(0)
    first = zipf_rows(random, (6000, 3))
    same = first if again else zipf_rows(random, first.shape)
    moved = np.concatenate([same[:5400], zipf_rows(random, (600, 3), shift=7000)])
    for later, low, high in ((same, -0.003, 0.003), (moved, 0.03, 0.06)):
        found = drift(*epochs(first, later), {"a": 20_000}, {"a": 64}, 64_000)
        assert low < found.value < high
        assert (found.low <= 0 <= found.high) == (later is same)


def test_of_inputs_that_are_alike_nobody_knows_which_came_again():
    random = np.random.default_rng(0)
    one_row = zipf_rows(random, (2000, 1))
    assert math.isnan(drift(*epochs(one_row, one_row), {"a": 20_000}, {"a": 64}, 64_000).value)


def test_inputs_have_the_same_content_if_all_their_lookups_are_the_same():
    counts = AccessCounts({"a": 9, "b": 9})
    ids = np.array([1, 2, 1, 2, 2, 1, 3, 1, 2, 3])  # a of each input, then b
    counts.add_inputs(["a", "b"], ids, np.array([[2, 2, 0, 2, 0], [0, 0, 1, 1, 2]]))
    sample = counts.inputs()[0]
    lookups = list(zip(sample.tables.tolist(), sample.ids.tolist(), strict=True))
    found = [sorted(lookups[a:b]) for a, b in pairwise(sample.offsets)]
    for one, other in combinations(range(5), 2):
        assert (sample.contents[one] == sample.contents[other]) == (found[one] == found[other])


def test_too_few_inputs_tell_no_drift():
    few, many = inputs(1, 100, each=3).where(np.arange(100) < 15), inputs(2, 100, each=3)
    assert math.isnan(drift(few, many, TABLES, ROW_BYTES, 800).value)
    assert math.isnan(drift(many, few, TABLES, ROW_BYTES, 800).value)
    assert not math.isnan(drift(many, many, TABLES, ROW_BYTES, 800).value)


@pytest.mark.parametrize(("row", "tables"), [(13, {"a": 10, "b": 10}), (1, {"a": 10, "b": 4})])
def test_no_id_of_a_table_is_a_row_of_another(row, tables):
    count = 100
    counts = AccessCounts(tables)
    counts.add_inputs(["a"], np.full(count, row), np.ones((1, count), np.int64))
    other = AccessCounts(tables)
    other.add_inputs(["b"], np.full(count, 3), np.ones((1, count), np.int64))
    found = drift(counts.inputs()[0], other.inputs()[0], counts.tables, {"a": 4, "b": 4}, 100)
    assert found.value == 1.0
