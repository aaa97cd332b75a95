"""The mode that sends fewer bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import distributed as dist
from torch import nn
from torchrec.distributed.types import ShardingEnv
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from tests.fae.parity import Model, fae_sharder, plan_of, profile_of
from tests.fae.small import case
from trainobs.core.errors import FAEError, SettingError
from trainobs.core.quotients import Interval
from trainobs.fae import FAEEmbeddingBagCollectionSharder, FAEProfile, TableProfile
from trainobs.fae.profile.predictions import Predictions, TablePrediction
from trainobs.fae.sharding.cost import _different_rows, sends_less_partitioned
from trainobs.fae.sharding.partition import Partition


class _Config:
    def __init__(self, table: TableProfile) -> None:
        self.name, self.embedding_dim = table.name, table.dim
        self.num_embeddings, self.feature_names = table.row_count, list(table.features)


def _profile(
    rows: int, hot: int, weights: np.ndarray, name: str = "t", dim: int = 32
) -> FAEProfile:
    table = TableProfile(name, rows, dim, ("f",), np.arange(hot), dim * 4 + 4)
    some = Interval(0.9, 0.8, 1.0)
    ends = np.unique(np.geomspace(1, rows, 200).astype(int))[:-1]  # of groups that are alike
    groups = np.split(weights / weights.sum(), ends)
    sizes = np.array([len(group) for group in groups])
    expected = TablePrediction(1.0, some, sizes, np.array([group.sum() for group in groups]))
    whole = Predictions(0.99, 1000, some, some, 128.0, some, some, some, {name: expected})
    return FAEProfile((table,), 1 << 30, whole)


def test_different_rows_are_those_that_a_batch_has() -> None:
    rng = np.random.default_rng(1)
    weights = np.repeat(np.arange(64.0, 0, -1), 100)  # equal in each group, as is assumed
    of = _profile(6400, 3200, weights)
    chances = weights[:3200] / weights[:3200].sum()
    for lookups in (100, 3000, 100_000):
        drawn = [len(np.unique(rng.choice(3200, lookups, p=chances))) for _ in range(20)]
        assert _different_rows(of, "t", lookups) == pytest.approx(np.mean(drawn), rel=0.03)


@pytest.mark.parametrize(("ranks", "is_less"), [(2, False), (64, True)])
def test_many_ranks_share_the_rows(ranks: int, is_less: bool) -> None:
    of = _profile(1_000_000, 1_000_000, np.arange(1.0, 1_000_001) ** -1.05)
    configs = [_Config(of.tables[0])]
    assert sends_less_partitioned(of, configs, ranks, 4096) is is_less  # type: ignore[arg-type]


def test_few_rows_are_on_all_ranks_however_many() -> None:
    of = _profile(100, 100, np.ones(100))
    configs = [_Config(of.tables[0])]
    assert not sends_less_partitioned(of, configs, 64, 4096)  # type: ignore[arg-type]


@pytest.mark.usefixtures("lone_rank")
def test_auto_takes_the_cheaper_mode() -> None:
    one = case(tables=(case().tables[0],))
    of = _profile(20, 10, np.ones(20), "t0", 8)
    table = TableProfile("t0", 20, 8, ("f0",), np.arange(10), 32)
    profile = FAEProfile((table,), 1 << 20, of.predictions)
    collection = Model(one).collection
    apply_optimizer_in_backward(torch.optim.SGD, collection.parameters(), {"lr": 0.1})
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    whole = nn.ModuleDict({"collection": collection})
    plan = plan_of(whole, one).plan["collection"]  # type: ignore[arg-type]
    for size, kind in ((1, True), (1000, False)):
        sharder = FAEEmbeddingBagCollectionSharder(profile, mode="auto", batch_size=size)
        env.world_size = 64  # as if
        mode = sharder._mode_of(collection, {}, env)
        env.world_size = 1
        assert (mode == "partitioned") is kind
    module = sharder.shard(collection, plan, env, torch.device("cpu"))
    assert not isinstance(module._overlay._rows, Partition)


def test_auto_needs_a_batch_size_and_predictions() -> None:
    one = case()
    with pytest.raises(SettingError, match="batch_size=None"):
        FAEEmbeddingBagCollectionSharder(profile_of(one), mode="auto")
    with pytest.raises(FAEError, match="a profile without predictions"):
        sends_less_partitioned(profile_of(one), [], 2, 1)
    assert fae_sharder(one, profile_of(one))._batch_size is None
