"""Cache statistics against an LFU cache by brute force, and in TorchRec's own planner."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.proposers import EmbeddingOffloadScaleupProposer
from torchrec.distributed.types import CacheParams
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from tests.fae.skewed import kjt, power_law, tables
from trainobs.core.errors import FAEError, SettingError
from trainobs.core.quotients import UNKNOWN
from trainobs.fae import FAEProfile, TableProfile, calibrate
from trainobs.fae.kjt.inputs import blocks_of, keys_of, parts_of
from trainobs.fae.profile.cache_statistics import TableCacheStatistics
from trainobs.fae.profile.predictions import TablePrediction

ROWS = (50_000, 50_000)
KEYS = ("skewed", "flat")
BATCH = 512


def data(seed, count=60_000):
    random = np.random.default_rng(seed)
    return np.stack([power_law(random, ROWS[0], count), random.integers(0, ROWS[1], count)])


@pytest.fixture(scope="module")
def profile():
    return calibrate(
        [kjt(data(0), KEYS)], tables(ROWS, KEYS, dim=32), "2MB", margin=0, progress=False
    )


@pytest.mark.parametrize("batch", [1, BATCH])
def test_the_miss_rate_is_that_of_a_cache_of_the_rows_counted_most(profile, batch):
    statistics = profile.cache_statistics("t_skewed", batch)
    counted = parts_of(keys_of(blocks_of(np.arange(60_000)), 0)) < 2
    counts = np.bincount(data(0)[0][counted], minlength=ROWS[0])
    ties = np.random.default_rng(5).random(ROWS[0])  # rows with low numbers are the hotter ones
    steps = data(1)[0][: 100 * BATCH].reshape(-1, batch)
    different = np.concatenate([np.unique(step) for step in steps])
    for clf in (0.0001, 0.001, 0.01, 0.1, 0.5, 0.9):
        cached = np.lexsort((ties, -counts))[: int(clf * ROWS[0])]
        missed = 1 - np.isin(different, cached).mean()
        assert statistics.expected_miss_rate(clf) == pytest.approx(missed, abs=0.02)
    assert statistics.expected_miss_rate(0) == 1
    assert statistics.expected_miss_rate(1) == 0


@pytest.mark.parametrize("batch", [0, -1, "512", 1.5])
def test_a_step_has_a_whole_number_of_inputs(profile, batch):
    with pytest.raises(SettingError, match="batch_size"):
        profile.cache_statistics("t_flat", batch)


def test_the_lookups_are_the_different_rows_of_a_batch(profile):
    for table, ids in zip(("t_skewed", "t_flat"), data(2), strict=True):
        parts = ids[: BATCH * 100].reshape(100, BATCH)
        different = np.mean([len(np.unique(part)) for part in parts])
        expected = profile.cache_statistics(table, BATCH).expected_lookups
        assert expected == pytest.approx(different, rel=0.04)


def test_a_flat_table_is_harder_to_cache_than_a_skewed_one(profile):
    skewed = profile.cache_statistics("t_skewed", BATCH).cacheability
    flat = profile.cache_statistics("t_flat", BATCH).cacheability
    assert 0 < skewed < 0.4
    assert flat == pytest.approx(1.0, abs=0.02)


def planned(statistics):
    """Cache load factors that TorchRec's planner gives the two tables."""
    constraints = {
        name: ParameterConstraints(
            sharding_types=["table_wise"],
            compute_kernels=["fused_uvm_caching"],
            cache_params=CacheParams(load_factor=0.05, stats=stats),
        )
        for name, stats in statistics.items()
    }
    topology = Topology(world_size=1, compute_device="cuda", hbm_cap=8 << 20, ddr_cap=1 << 30)
    planner = EmbeddingShardingPlanner(
        topology=topology,
        enumerator=EmbeddingEnumerator(topology, batch_size=BATCH, constraints=constraints),
        proposer=[EmbeddingOffloadScaleupProposer()],
        constraints=constraints,
        batch_size=BATCH,
    )
    model = torch.nn.Sequential(
        EmbeddingBagCollection(tables=tables(ROWS, KEYS, dim=32), device=torch.device("meta"))
    )
    plan = planner.plan(model, [EmbeddingBagCollectionSharder()])
    (shards,) = plan.plan.values()
    return {name: shards[name].cache_params.load_factor for name in statistics}


def test_the_planner_of_torchrec_gives_more_cache_to_the_table_that_needs_it(profile):
    statistics = {name: profile.cache_statistics(name, BATCH) for name in ("t_skewed", "t_flat")}
    found = planned(copy.deepcopy(statistics))
    assert found["t_flat"] > found["t_skewed"] >= 0.05
    # The control: what it knows nothing of, it leaves as it is.
    assert planned(dict.fromkeys(statistics)) == {"t_skewed": 0.05, "t_flat": 0.05}


def test_a_profile_that_was_not_calibrated_has_no_statistics():
    table = TableProfile("t", 10, 4, ("f",), np.array([1]), 20)
    with pytest.raises(FAEError, match="a profile without predictions"):
        FAEProfile((table,), 100).cache_statistics("t", BATCH)
    with pytest.raises(FAEError, match="table 'u'"):
        FAEProfile((table,), 100).cache_statistics("u", BATCH)


def test_a_table_that_was_never_looked_up_needs_no_cache():
    unknown = UNKNOWN
    nothing = TablePrediction(0.0, unknown, np.array([10]), np.array([np.nan]))
    statistics = TableCacheStatistics(nothing, 10, BATCH)
    assert statistics.expected_lookups == 0
    assert [statistics.expected_miss_rate(clf) for clf in (0, 0.5, 1)] == [1, 1, 0]
