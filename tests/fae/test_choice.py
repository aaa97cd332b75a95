"""Hot rows against a brute-force choice."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from torchrec.modules.embedding_configs import EmbeddingBagConfig

from tests.fae.skewed import kjt, matrix, quiet
from trainobs.access.sketch import Sketch
from trainobs.core.errors import FAEError
from trainobs.fae.calibration.choice import SMALL_TABLES_RATIO, RowCounts, choose
from trainobs.fae.profile.model_tables import ModelTable


def table(name, rows, row_bytes=20):
    return ModelTable(name, rows, 4, (name,), 16, row_bytes)


def constant(counts):
    counts = np.asarray(counts, dtype=np.uint64)
    return RowCounts(lambda: counts)


def brute_force(tables, counts, budget):
    """One row after the other: whole small tables, then by count per byte, table, row."""
    hot = {table.name: [] for table in tables}
    used = 0
    small = []
    for each in sorted(tables, key=lambda table: table.total_bytes):
        if used + each.total_bytes > SMALL_TABLES_RATIO * budget:
            break
        used += each.total_bytes
        small.append(each.name)
        hot[each.name] = list(range(each.row_count))
    rows = sorted(
        (-int(counts[each.name][row]) / each.row_bytes, place, row)
        for place, each in enumerate(tables)
        if each.name not in small
        for row in range(each.row_count)
        if counts[each.name][row] > 0
    )
    for _, place, row in rows:
        if used + tables[place].row_bytes > budget:
            return {name: sorted(ids) for name, ids in hot.items()}, True
        used += tables[place].row_bytes
        hot[tables[place].name].append(row)
    return {name: sorted(ids) for name, ids in hot.items()}, False


@pytest.mark.parametrize("seed", range(60))
def test_the_choice_is_that_of_brute_force_and_fits(seed):
    random = np.random.default_rng(seed)
    tables = [
        table(f"t{i}", int(random.integers(1, 200)), int(random.choice([20, 20, 36])))
        for i in range(random.integers(1, 6))
    ]
    counts = {
        each.name: (random.pareto(1.0, each.row_count) * random.integers(0, 4)).astype(np.uint64)
        for each in tables
    }
    budget = int(random.uniform(0.01, 0.9) * sum(each.total_bytes for each in tables)) + 1
    choice = choose(tables, {name: constant(each) for name, each in counts.items()}, budget)
    assert sum(len(choice.hot_ids[t.name]) * t.row_bytes for t in tables) <= budget
    expected, is_full = brute_force(tables, counts, budget)
    for name, ids in expected.items():
        if is_full:
            assert_array_equal(choice.hot_ids[name], ids)
        else:  # then rest of tables may have been taken in
            assert set(ids) <= set(choice.hot_ids[name].tolist())


def test_counts_beyond_the_histogram_rank_as_they_should():
    counts = [5, 1 << 40, 70_000, 65_535, 65_536, 70_000, 0]
    chosen = choose([table("t", 7)], {"t": constant(counts)}, 4 * 20)
    assert_array_equal(chosen.hot_ids["t"], [1, 2, 4, 5])
    assert_array_equal(constant(counts).classes.counts, [1 << 40, 70_000, 65_536, 65_535, 5])
    assert_array_equal(constant(counts).classes.rows, [1, 2, 1, 1, 1])


def test_a_sketch_gives_the_same_rows_as_the_counts_it_stands_for():
    random = np.random.default_rng(1)
    counts = (random.pareto(0.8, 500) * 3).astype(np.uint64)
    known = np.flatnonzero(counts)
    sketch = Sketch(known, counts[known], 0, int(counts.sum()))
    tables = [table("t", 500)]
    for budget in (100, 1000, 5000):
        exact = choose(tables, {"t": constant(counts)}, budget)
        by_sketch = choose(tables, {"t": RowCounts(partial(lambda: sketch))}, budget)
        assert_array_equal(exact.hot_ids["t"], by_sketch.hot_ids["t"])
        asked = np.arange(500)
        assert_array_equal(RowCounts(lambda: sketch).of(asked), counts[asked])


def test_small_tables_are_hot_as_a_whole_though_nobody_looked():
    tables = [table("small", 5), table("large", 1000)]
    counts = {"small": constant(np.zeros(5)), "large": constant(np.arange(1000))}
    assert len(choose(tables, counts, 2000).hot_ids["small"]) == 5
    assert len(choose(tables, counts, 1999).hot_ids["small"]) == 0  # 100 bytes are more than 5 %


def test_a_table_that_still_fits_is_completed_with_rows_not_seen():
    tables = [table("seen", 50), table("hardly", 400)]
    counts = {"seen": constant([1] * 49 + [0]), "hardly": constant([3] + [0] * 399)}
    chosen = choose(tables, counts, 60 * 20)
    assert len(chosen.hot_ids["seen"]) == 50
    assert_array_equal(chosen.hot_ids["hardly"], [0])


def test_the_threshold_is_the_count_of_the_coldest_row_chosen():
    counts = np.array([9, 7, 7, 4, 2, 1])
    full = choose([table("t", 6)], {"t": constant(counts)}, 60)
    assert_array_equal(full.hot_ids["t"], [0, 1, 2])
    assert full.threshold.lookup_count == 4  # the first class that did not fit
    assert full.bytes_at(7 / 20) == 60


def shared(name, features, rows=100, row_bytes=20):
    return table(name, rows, row_bytes)._replace(features=features)


@pytest.mark.parametrize("sketched", [False, True])
def test_tables_that_share_a_feature_have_the_same_hot_rows(sketched):
    random = np.random.default_rng(1)
    first = shared("deep", ("f", "g"), row_bytes=36)
    tables = [first, shared("wide", ("f",), row_bytes=4), shared("alone", ("h",))]
    counts = {each.name: random.integers(1, 50, 100).astype(np.uint64) for each in tables}
    known = {name: constant(of_table) for name, of_table in counts.items()}
    if sketched:
        sketch = Sketch(np.arange(100), counts["wide"], 0, int(counts["wide"].sum()))
        known["wide"] = RowCounts(lambda: sketch)
    chosen = choose(tables, known, budget=1500)
    assert_array_equal(chosen.hot_ids["deep"], chosen.hot_ids["wide"])
    both = [table("deep", 100, 40), table("alone", 100, 20)]
    sums = {"deep": counts["deep"] + counts["wide"], "alone": counts["alone"]}
    expected, _ = brute_force(both, sums, 1500)
    assert chosen.hot_ids["deep"].tolist() == expected["deep"]
    assert chosen.hot_ids["alone"].tolist() == expected["alone"]


def pair_and(*others, rows=(1000, 2000)):
    configs = [
        *(
            EmbeddingBagConfig(
                name=name, num_embeddings=count, embedding_dim=4, feature_names=["item"]
            )
            for name, count in zip(("wide", "deep"), rows, strict=True)
        ),
        *others,
    ]
    ids = matrix(0, 20_000, (1000, 500))[: 1 + len(others)]
    return [kjt(ids, ("item", "user")[: 1 + len(others)])], configs


USER = EmbeddingBagConfig(name="user", num_embeddings=500, embedding_dim=4, feature_names=["user"])


def test_tables_that_cannot_be_hot_are_named_and_no_fault_of_others(caplog):
    loader, configs = pair_and(USER)
    for budget in ("1GB", 4000):
        caplog.clear()
        profile = quiet(loader, of=configs, budget=budget, margin=0)
        assert [len(table.hot_ids) > 0 for table in profile.tables] == [False, False, True]
        assert "no row of wide, deep will be hot\n  found: they share features" in caplog.text
        assert "all rows will be hot" not in caplog.text
        assert (
            "  left out           wide, deep, which share features and differ\n"
            in profile.summary()
        )
        assert "every row that was looked up is hot" not in profile.summary()


def test_a_model_of_such_tables_alone_is_refused_for_that():
    loader, configs = pair_and()
    with pytest.raises(FAEError, match="wide, deep, which share features and differ in their num"):
        quiet(loader, of=configs, budget="1GB")


def test_tables_of_other_sizes_that_share_a_feature_take_no_bytes():
    tables = [shared("deep", ("f",)), shared("wide", ("f",), rows=50), shared("alone", ("h",))]
    chosen = choose(tables, {t.name: constant([3] * t.row_count) for t in tables}, budget=1500)
    assert {name: len(ids) for name, ids in chosen.hot_ids.items()} == {
        "deep": 0,
        "wide": 0,
        "alone": 75,
    }
