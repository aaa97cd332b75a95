"""Counts against a count of one lookup after the other."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from tests.access.brute_force import Truth, check
from trainobs.access import AccessCounts, Sketch
from trainobs.access import dense as dense_module
from trainobs.access.dense import Dense
from trainobs.access.plan import plan
from trainobs.access.pool import CounterPool, fair_quota
from trainobs.core.errors import AccessCountsError, SettingError

SMALL_BUDGET = 10_000
"""With it a table of more than a few hundred rows has no counter a row, and no room for all."""
TABLES = {"tiny": 3, "small": 60, "large": 4000, "huge": 10**12, "none": 0}
MANY = settings(max_examples=150, deadline=None, database=None)


@st.composite
def lookups(draw):
    """A table and ids: alike or skewed, some of them outside the table."""
    name = draw(st.sampled_from(list(TABLES)))
    numpy_random = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.sampled_from([0, 1, 10, 200, 1500]))
    spread = draw(st.sampled_from([5, 100, 1000, 10**13]))
    ids = numpy_random.pareto(draw(st.sampled_from([0.3, 1.0, 3.0])), size) * spread
    return name, np.minimum(ids, 1e18).astype(np.int64) % (spread + 7) - 2


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2), lookups()),
        st.tuples(st.just("merge"), st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.just("save"), st.integers(0, 2), st.none()),
    ),
    max_size=14,
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("counts") / "counts.npz"


def play(operations, file, budgets):
    """Three objects that count, merge with each other, and go through a file."""
    objects = [AccessCounts(TABLES, budget_bytes=budget) for budget in budgets]
    truths = [Truth(TABLES) for _ in objects]
    for kind, at, what in operations:
        if kind == "add":
            objects[at].add(*what)
            truths[at].add(*what)
        elif kind == "merge" and at != what:
            objects[at].merge(objects[what])
            truths[at].merge(truths[what])
        elif kind == "save":
            objects[at].save(file)
            objects[at] = AccessCounts.load(file)
    return zip(objects, truths, strict=True)


@MANY
@given(OPERATIONS, st.lists(st.sampled_from([SMALL_BUDGET, 14_000, 10**6]), min_size=3, max_size=3))
def test_every_number_is_exact_or_inside_its_bound(file, operations, budgets):
    for counts, truth in play(operations, file, budgets):
        check(counts, truth)


def stream(seed: int):
    """Lookups that overflow a small pool many times."""
    numpy_random = np.random.default_rng(seed)
    for _ in range(30):
        yield "huge", (numpy_random.pareto(0.5, 500) * 10).astype(np.int64)
        yield "large", numpy_random.integers(0, 4000, 300)


def counted(seed: int, budget_bytes: int = SMALL_BUDGET):
    counts, truth = AccessCounts(TABLES, budget_bytes=budget_bytes), Truth(TABLES)
    for name, ids in stream(seed):
        counts.add(name, ids)
        truth.add(name, ids)
    return counts, truth


def test_the_error_is_within_the_guarantee_of_misra_and_gries_also_after_merging():
    shares = plan(TABLES, SMALL_BUDGET)
    quota = (shares.entry_count - shares.pending_count) // 2  # two tables share the pool
    counts, truth = counted(0)
    for seed in range(1, 6):
        more, more_truth = counted(seed)
        counts.merge(more)
        truth.merge(more_truth)
    check(counts, truth)
    for name in ("huge", "large"):
        assert 0 < counts.error(name) <= counts.total(name) / (quota + 1)


def test_an_error_that_is_not_recorded_is_noticed(monkeypatch):
    shrink = CounterPool._shrink

    def forgetful(pool):
        before = list(pool.errors)
        shrink(pool)
        pool.errors = before

    monkeypatch.setattr(CounterPool, "_shrink", forgetful)
    counts, truth = counted(0)
    with pytest.raises(AssertionError):
        check(counts, truth)


def test_a_lookup_that_gets_lost_is_noticed(monkeypatch):
    insert = CounterPool._insert
    monkeypatch.setattr(
        CounterPool, "_insert", lambda pool, *new: insert(pool, *(part[1:] for part in new))
    )
    counts, truth = counted(0, budget_bytes=10**6)
    with pytest.raises(AssertionError):
        check(counts, truth)


def test_a_table_with_few_rows_in_use_stays_exact_beside_one_that_overflows():
    counts = AccessCounts({"a": 10**9, "b": 10**9}, budget_bytes=SMALL_BUDGET)
    truth = Truth(counts.tables)
    numpy_random = np.random.default_rng(5)
    for _ in range(40):
        for name, ids in (
            ("a", numpy_random.integers(0, 10**9, 100)),
            ("b", numpy_random.integers(0, 50, 20) * 10**7),
        ):
            counts.add(name, ids)
            truth.add(name, ids)
    check(counts, truth)
    assert counts.error("a") > 0
    assert counts.error("b") == 0


def test_what_is_skewed_keeps_its_hot_rows():
    counts, truth = counted(3)
    ids, _ = counts.hottest("huge", 3)
    assert ids.tolist() == [row for row, _ in truth.rows["huge"].most_common(3)]


@pytest.mark.parametrize(("sizes", "room"), [([5, 1, 9], 20), ([5, 1, 9], 9), ([4, 4], 7), ([], 3)])
def test_the_quota_is_the_highest_with_which_all_fit(sizes, room):
    def taken(quota):
        return sum(min(size, quota) for size in sizes)

    quota = fair_quota(np.array(sizes, np.intp), room)
    assert taken(quota) <= room
    assert taken(quota + 1) > room or quota >= max(sizes, default=0)


def test_a_counter_that_passes_32_bits_is_exact(monkeypatch):
    dense = Dense(5)
    high = np.array([2**33 + 5, 2**32 - 1], np.uint64)
    for _ in range(3):
        dense.put(np.array([1, 4]), high)
        dense.add(np.array([1, 1, 4, 0]))
    expected = [3, 3 * (2**33 + 5) + 6, 0, 0, 3 * (2**32 - 1) + 3]
    assert dense.counts().tolist() == expected
    ((ids, counts),) = dense.blocks()
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {
        row: count for row, count in enumerate(expected) if count
    }


def test_adding_alone_passes_32_bits():
    dense = Dense(3)
    dense.put(np.array([2]), np.array([2**31 - 1], np.uint64))
    dense.put(np.array([2]), np.array([2**31 - 1], np.uint64))
    for _ in range(3):
        dense.add(np.array([2, 2, 0]))
    assert dense.counts().tolist() == [3, 0, 2**32 - 2 + 6]


def test_without_the_carry_a_counter_would_wrap(monkeypatch):
    monkeypatch.setattr(dense_module.Dense, "_make_room", lambda self, more: None)
    dense = Dense(3)
    for _ in range(4):
        dense.put(np.array([2]), np.array([2**31 - 1], np.uint64))
    assert dense.counts()[2] != 4 * (2**31 - 1)


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8, np.uint64])
def test_any_type_of_integer_will_do(kind):
    counts = AccessCounts({"t": 10})
    counts.add("t", np.array([1, 1, 9, 200], kind))
    assert counts.counts("t").tolist() == [0, 2, 0, 0, 0, 0, 0, 0, 0, 1]
    assert counts.outside("t") == 1


def test_equal_rows_come_in_the_order_of_their_ids_however_many_there_are():
    counts = AccessCounts({"t": 400_000})
    counts.add("t", np.random.default_rng(1).permutation(400_000))
    counts.add("t", np.array([399_999, 5]))
    ids, highest = counts.hottest("t", 4)
    assert ids.tolist() == [5, 399_999, 0, 1]
    assert highest.tolist() == [2, 2, 1, 1]
    assert counts.hottest("t", 0)[0].tolist() == []
    assert len(counts.hottest("t", 10**6)[0]) == 400_000


def test_merging_adds_tables_that_were_not_there():
    counts, other = AccessCounts({"a": 5}), AccessCounts({"b": 7, "a": 5})
    counts.add("a", np.array([1]))
    other.add("a", np.array([1, 2]))
    other.add("b", np.array([6, 9]))
    counts.merge(other)
    assert counts.tables == {"a": 5, "b": 7}
    assert counts.counts("a").tolist() == [0, 2, 1, 0, 0]
    assert counts.counts("b").tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert (counts.outside("a"), counts.outside("b")) == (0, 1)


def test_a_sketch_merged_into_exact_counts_makes_them_a_sketch():
    small, truth = counted(0)
    large = AccessCounts(TABLES)
    assert not isinstance(large.counts("large"), Sketch)
    large.merge(small)
    assert isinstance(large.counts("large"), Sketch)
    check(large, truth)


def test_other_numbers_of_rows_are_refused_and_nothing_is_changed():
    counts, other = AccessCounts({"a": 5, "b": 2}), AccessCounts({"a": 5, "b": 3})
    other.add("a", np.array([1]))
    with pytest.raises(AccessCountsError, match="table 'b'\n  found: 2 rows here, 3 there\n  do: "):
        counts.merge(other)
    assert counts.total("a") == 0


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda c: c.add("z", np.array([1])), "no table 'z'"),
        (lambda c: c.hottest("z", 1), "no table 'z'"),
        (lambda c: c.hottest("a", "3"), "n=.3."),
        (lambda c: c.hottest("a", -1), "at least 0"),
        (lambda c: c.add("a", np.array([[1]])), r"shape \(1, 1\) and type int64"),
        (lambda c: c.add("a", np.array([1.5])), "type float64"),
        (lambda c: c.add("a", [1, 2]), "found: a list"),
        (lambda c: c.merge(c), "the object itself"),
        (lambda c: c.merge({"a": 5}), "found: a dict"),
        (lambda c: AccessCounts({"a": 2.5}), "a: 2.5"),
        (lambda c: AccessCounts({"a": -1}), "a: -1"),
        (lambda c: AccessCounts({"a": 2**62, "b": 2**62}), "together less than 2"),
        (lambda c: AccessCounts({"a": 10**6}, budget_bytes=1000), "in 1,000 bytes"),
        (lambda c: AccessCounts([("a", 5)]), "a list in the place of tables"),
        (lambda c: AccessCounts({"a": 5}, budget_bytes="4 GiB"), "budget_bytes='4 GiB'"),
        (lambda c: AccessCounts({"a": 5}, budget_bytes=float("nan")), "budget_bytes=nan"),
        (lambda c: AccessCounts({"a": 5}, seed="x"), "seed='x'"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(action, message):
    with pytest.raises(SettingError, match=message) as caught:
        action(AccessCounts({"a": 5}))
    assert str(caught.value).count("\n") == 2


def test_counts_that_came_from_another_process_are_read_where_nothing_may_write():
    counts = AccessCounts({"t": 5_000_000}, budget_bytes=1 << 20, seed=0)
    assert counts.sketched
    counts.add("t", np.arange(4000) % 9)
    buffers = []
    raw = pickle.dumps(counts, protocol=5, buffer_callback=buffers.append)
    sent = pickle.loads(raw, buffers=[bytes(each) for each in buffers])  # as Ray's store gives it
    merged = AccessCounts({"t": 5_000_000}, budget_bytes=1 << 20, seed=0)
    merged.merge(sent)
    assert merged.total("t") == sent.total("t") == 4000
    assert_array_equal(merged.counts("t").ids, np.arange(9))
    assert_array_equal(sent.counts("t").counts, counts.counts("t").counts)
