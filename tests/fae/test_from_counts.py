"""Profiles from access counts of a run."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from torchrec.modules.embedding_configs import EmbeddingBagConfig

from tests.fae.skewed import KEYS, ROWS, matrix, power_law, tables
from trainobs.access.counts import AccessCounts
from trainobs.core.errors import AccessCountsError, FAEError
from trainobs.fae import FAEProfile, TableProfile, calibrate, propose_refresh

NAMES = [f"t_{key}" for key in KEYS]
BUDGET = 20_000


def counted(ids, *, budget_bytes=1 << 20, offer=True, rows=ROWS):
    counts = AccessCounts(dict(zip(NAMES, rows, strict=True)), budget_bytes=budget_bytes, seed=0)
    for first in range(0, ids.shape[1], 500):
        part = ids[:, first : first + 500]
        for name, row in zip(NAMES, part, strict=True):
            counts.add(name, row)
        if offer:
            counts.add_inputs(NAMES, part.ravel(), np.ones(part.shape, dtype=np.int64))
    return counts


def calibrated(source, **options):
    return calibrate(source, tables(), BUDGET, progress=False, **options)


def hot_inputs(profile, ids):
    hot = [profile.slots(t.name)[row] >= 0 for t, row in zip(profile.tables, ids, strict=True)]
    return np.stack(hot).all(axis=0).mean()


def test_hot_rows_are_the_most_counted_of_inputs_that_are_not_in_the_sample():
    ids = matrix(0, 30_000)
    counts = counted(ids)
    profile = calibrated(counts)
    (sample,) = counts.inputs().values()
    assert 100 < len(sample) < 20_000
    assert profile.predictions.input_count == len(sample)
    assert profile.made["inputs_counted"] == 30_000 - len(sample)
    assert BUDGET - 20 < profile.hot_bytes <= BUDGET
    left = []
    for i, table in enumerate(profile.tables):
        rest = np.bincount(ids[i], minlength=ROWS[i])
        rest -= np.bincount(sample.ids[sample.tables == i], minlength=ROWS[i])
        cold = np.setdiff1d(np.arange(ROWS[i]), table.hot_ids)
        if len(cold):
            left.append((rest[table.hot_ids].min(), rest[cold].max()))
    assert min(low for low, _ in left) >= max(high for _, high in left)
    assert [table.features for table in profile.tables] == [(key,) for key in KEYS]


def test_what_is_predicted_holds_for_fresh_data():
    fresh = matrix(99, 300_000)
    misses = 0
    for seed in range(40):
        profile = calibrated(counted(matrix(seed, 8000), budget_bytes=400_000), confidence=0.9)
        share = profile.predictions.all_hot_ratio
        misses += not share.low <= hot_inputs(profile, fresh) <= share.high
    assert misses <= 4 + 3.7 * 2


def test_of_two_inputs_one_is_counted_and_one_judged():
    profile = calibrated(counted(matrix(2, 2)))
    assert (profile.made["inputs_counted"], profile.predictions.input_count) == (1, 1)


def test_a_short_run_whose_inputs_are_all_in_the_sample_is_judged_by_a_quarter_of_them():
    counts = counted(matrix(2, 4000), budget_bytes=64 << 20)
    (sample,) = counts.inputs().values()
    assert len(sample) == sample.seen == 4000
    profile = calibrated(counts)
    assert profile.predictions.input_count == 1000
    assert profile.made["inputs_counted"] == 3000
    share = profile.predictions.all_hot_ratio
    assert share.low <= hot_inputs(profile, matrix(99, 100_000)) <= share.high


def test_epochs_whose_sample_is_gone_were_counted_too():
    counts = AccessCounts(dict(zip(NAMES, ROWS, strict=True)), seed=0)
    for epoch in range(10):
        ids = matrix(epoch, 2000)
        for name, row in zip(NAMES, ids, strict=True):
            counts.add(name, row)
        counts.add_inputs(NAMES, ids.ravel(), np.ones(ids.shape, dtype=np.int64), epoch=epoch)
    assert len(counts.inputs()) == 4
    profile = calibrated(counts)
    assert profile.made["inputs_counted"] == 20_000 - profile.predictions.input_count


def epochs(*data, budget_bytes=64 << 20):
    """Counts of a run whose epochs read these inputs, in an order of each."""
    counts = AccessCounts(dict(zip(NAMES, ROWS, strict=True)), budget_bytes=budget_bytes, seed=0)
    for epoch, ids in enumerate(data):
        shuffled = ids[:, np.random.default_rng(epoch).permutation(ids.shape[1])]
        for name, row in zip(NAMES, shuffled, strict=True):
            counts.add(name, row)
        lengths = np.ones(ids.shape, dtype=np.int64)
        counts.add_inputs(NAMES, shuffled.ravel(), lengths, epoch=epoch)
    return counts


def test_epochs_of_the_same_inputs_are_judged_as_one(caplog):
    fresh = matrix(99, 300_000)
    misses = 0
    for seed in range(20):
        counts = epochs(*[matrix(seed, 4000)] * 3)
        profile = calibrated(counts, confidence=0.9)
        share = profile.predictions.all_hot_ratio
        misses += not share.low <= hot_inputs(profile, fresh) <= share.high
        assert profile.predictions.input_count == 1000
        assert profile.made["inputs_counted"] == 9000
    assert misses <= 2 + 3.7 * 1.4
    assert caplog.records == []


def test_epochs_of_other_inputs_all_judge(caplog):
    profile = calibrated(epochs(matrix(1, 4000), matrix(2, 4000)))
    assert profile.predictions.input_count == 2000
    assert caplog.records == []


def test_inputs_that_came_again_and_are_not_all_known_are_told(caplog):
    again = epochs(*[matrix(1, 8000)] * 2, budget_bytes=3_000_000)
    assert sum(map(len, again.inputs().values())) < 16_000
    profile = calibrated(again)
    (told,) = (record.getMessage() for record in caplog.records)
    assert "holds for their own data alone" in told
    refresh = propose_refresh(profile, again, tables(), least_gain=-1.0)
    assert not refresh.is_worth_it
    assert refresh.summary().endswith("not surely worth it")
    assert propose_refresh(profile, epochs(matrix(1, 8000)), tables(), least_gain=-1.0).is_worth_it


@pytest.mark.parametrize("tail", [4, 100, 1000])
def test_an_epoch_that_was_cut_short_hides_no_repetition(tail, caplog):
    data = matrix(1, 4000)
    profile = calibrated(epochs(data, data, data, data[:, :tail]))
    assert profile.predictions.input_count == 1000
    assert profile.made["inputs_counted"] <= 9000 + tail
    assert caplog.records == []


def test_samples_too_small_to_show_a_repetition_are_told(caplog):
    counts = epochs(*[matrix(1, 60_000)] * 2, budget_bytes=1_000_000)
    assert max(map(len, counts.inputs().values())) < 700
    profile = calibrated(counts)
    (told,) = (record.getMessage() for record in caplog.records)
    assert "or may have" in told
    assert not propose_refresh(profile, counts, tables(), least_gain=-1.0).is_worth_it


def test_as_many_inputs_that_are_alike_are_taken_off_as_judge():
    ids = np.zeros((3, 4000), dtype=np.int64)
    ids[:, 2000:] = matrix(1, 2000)
    profile = calibrated(epochs(ids, ids))
    assert profile.made["inputs_counted"] == 6000


def test_a_file_and_a_run_directory_give_the_same(tmp_path):
    counts = counted(matrix(1, 20_000))
    (tmp_path / "run" / "access-counts").mkdir(parents=True)
    counts.save(tmp_path / "run" / "access-counts" / "rank=0.npz")
    prints = [
        calibrated(source).fingerprint
        for source in (
            counts,
            tmp_path / "run" / "access-counts" / "rank=0.npz",
            str(tmp_path / "run" / "access-counts"),
            tmp_path / "run",
        )
    ]
    assert len(set(prints)) == 1


def test_counts_that_are_a_sketch_choose_nearly_as_well():
    ids = matrix(2, 60_000)
    small = counted(ids, budget_bytes=100_000)
    assert small.error("t_large") > 0
    by_sketch, exact = calibrated(small), calibrated(counted(ids))
    assert by_sketch.hot_bytes <= BUDGET
    fresh = matrix(50, 100_000)
    assert hot_inputs(by_sketch, fresh) > hot_inputs(exact, fresh) - 0.05
    assert_array_equal(by_sketch.tables[0].hot_ids, exact.tables[0].hot_ids)


def test_counts_of_another_model_are_refused():
    other = counted(matrix(0, 2000), rows=(40, 3000, 20_001))
    with pytest.raises(FAEError, match=r"another model\n  found: table 't_large' with 20000 rows"):
        calibrated(other)
    with pytest.raises(FAEError, match=r"in the counts only \["):
        calibrated(AccessCounts({"t_small": 40}))


def test_counts_without_inputs_are_refused():
    with pytest.raises(FAEError, match="no sample of inputs with them"):
        calibrated(counted(matrix(0, 2000), offer=False))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(AccessCountsError):
        calibrated(tmp_path / "nothing")


def sharing(rows, dims=(4, 16), names=("one", "other")):
    """Tables of one feature, and counts of 20,000 inputs that look it up."""
    configs = [
        EmbeddingBagConfig(name=name, num_embeddings=n, embedding_dim=dim, feature_names=["f"])
        for name, n, dim in zip(names, rows, dims, strict=True)
    ]
    counts = AccessCounts(dict(zip(names, rows, strict=True)), seed=0)
    ids = power_law(np.random.default_rng(3), max(rows), 20_000)
    by_table = [ids % n for n in rows]
    for name, own in zip(names, by_table, strict=True):
        counts.add(name, own)
    counts.add_inputs(names, np.concatenate(by_table), np.ones((len(rows), 20_000), np.int64))
    return configs, counts


def test_tables_of_one_feature_get_the_same_hot_rows():
    configs, counts = sharing((5000, 5000))
    profile = calibrate(counts, configs, "60kB")
    one, other = profile.tables
    assert one.features == other.features == ("f",)
    assert len(one.hot_ids) > 100
    assert_array_equal(one.hot_ids, other.hot_ids)
    refresh = propose_refresh(profile, counts, configs)
    assert refresh.profile.fingerprint == profile.fingerprint
    assert refresh.now == refresh.then


def test_tables_of_one_feature_that_differ_in_rows_get_none():
    configs, counts = sharing((5000, 4000))
    with pytest.raises(FAEError, match="one, other, which share features and differ"):
        calibrate(counts, configs, "60kB")
    with pytest.raises(FAEError, match="one, other, which share features and differ"):
        propose_refresh(profile_by_hand(configs), counts, configs)


def test_beside_a_third_table_they_have_no_hot_rows_and_serve_none():
    configs, counts = sharing((5000, 4000, 3000), (4, 4, 4), ("one", "other", "third"))
    configs[2].feature_names[:] = ["g"]
    profile = calibrate(counts, configs, "10kB")
    assert [len(table.hot_ids) > 0 for table in profile.tables] == [False, False, True]
    expected = profile.predictions
    assert expected.all_hot_ratio.value == 0
    assert expected.hot_lookup_ratio.value < 1 / 3
    assert "left out           one, other" in profile.summary()


def profile_by_hand(configs):
    tables = (
        TableProfile(c.name, c.num_embeddings, c.embedding_dim, ("f",), np.arange(9), 20)
        for c in configs
    )
    return FAEProfile(tuple(tables), 60_000)
