"""The mode that sends fewer bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import distributed as dist
from torch import nn
from torchrec.distributed.types import ShardingEnv
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from tests.fae.cases import profile_of
from tests.fae.parity import Model, fae_sharder, plan_of
from tests.fae.small import case
from trainobs.core.errors import FAEError, SettingError
from trainobs.core.quotients import Interval
from trainobs.fae import FAEEmbeddingBagCollectionSharder, FAEProfile, TableProfile
from trainobs.fae.profile.predictions import Predictions, TablePrediction
from trainobs.fae.sharding import sharder as sharder_module
from trainobs.fae.sharding.cost import _hot_rows, expected_bytes
from trainobs.fae.sharding.partition import Partition


class _Config:
    def __init__(self, table: TableProfile) -> None:
        self.name, self.embedding_dim = table.name, table.dim
        self.num_embeddings, self.feature_names = table.row_count, list(table.features)


def _profile(
    rows: int,
    hot: int,
    weights: np.ndarray,
    name: str = "t",
    dim: int = 32,
    lookups: float = 1.0,
    all_hot: float = 0.9,
) -> FAEProfile:
    table = TableProfile(name, rows, dim, ("f",), np.arange(hot), dim * 4 + 4)
    some, inputs = Interval(0.9, 0.8, 1.0), Interval(all_hot, 0.0, 1.0)
    ends = np.unique(np.geomspace(1, rows, 200).astype(int))[:-1]  # of groups that are alike
    groups = np.split(weights / weights.sum(), ends)
    sizes = np.array([len(group) for group in groups])
    expected = TablePrediction(lookups, some, sizes, np.array([group.sum() for group in groups]))
    whole = Predictions(0.99, 1000, inputs, some, 128.0, some, some, some, {name: expected})
    return FAEProfile((table,), 1 << 30, whole)


def test_different_rows_are_those_that_a_batch_has() -> None:
    rng = np.random.default_rng(1)
    weights = np.repeat(np.arange(64.0, 0, -1), 100)  # equal in each group, as is assumed
    expected = _profile(6400, 3200, weights).predictions
    assert expected is not None
    chances = weights[:3200] / weights[:3200].sum()
    for lookups in (100, 3000, 100_000):
        drawn = [len(np.unique(rng.choice(3200, lookups, p=chances))) for _ in range(20)]
        found = _hot_rows(expected.tables["t"], 3200, lookups)
        assert found == pytest.approx(np.mean(drawn), rel=0.03)


@pytest.mark.parametrize(("ranks", "is_less"), [(2, False), (64, True)])
def test_many_ranks_share_the_rows(ranks: int, is_less: bool) -> None:
    of = _profile(1_000_000, 1_000_000, np.arange(1.0, 1_000_001) ** -1.05)
    configs = [_Config(of.tables[0])]
    sent = expected_bytes(of, configs, ranks, 4096)  # type: ignore[arg-type]
    assert (sent.stock < sent.overlay) is is_less


def test_few_rows_are_on_all_ranks_however_many() -> None:
    of = _profile(100, 100, np.ones(100))
    configs = [_Config(of.tables[0])]
    sent = expected_bytes(of, configs, 64, 4096)  # type: ignore[arg-type]
    assert sent.overlay < sent.stock


def _drawn(of: FAEProfile, lookups: int, hot: float) -> int:
    """Different rows among so many lookups, of which a share is hot."""
    expected = of.predictions.tables["t"]  # type: ignore[union-attr]
    each = np.repeat(expected.group_ratios / expected.group_rows, expected.group_rows)
    chances = each[: len(of.tables[0].hot_ids)] / each[: len(of.tables[0].hot_ids)].sum()
    rng = np.random.default_rng(2)
    return len(np.unique(rng.choice(len(chances), round(lookups * hot), p=chances)))


@pytest.mark.parametrize("lookups", [1, 16])
@pytest.mark.parametrize("all_hot", [0.0, 0.25, 0.9])
def test_pure_and_mixed_steps_are_weighed(lookups: int, all_hot: float) -> None:
    weights = np.arange(1.0, 20_001) ** -1.05
    of = _profile(20_000, 5_000, weights, lookups=lookups, all_hot=all_hot)
    inputs, ranks = 1024, 2
    sent = expected_bytes(of, [_Config(of.tables[0])], ranks, inputs)  # type: ignore[arg-type]
    embeddings, count = 2 * inputs * 32 * 4 + inputs * 4, inputs * lookups
    hot = (0.9 - all_hot) / (1 - all_hot)  # of the lookups of inputs that are not all hot
    pure, mixed = (
        sum(_drawn(of, n * count, share) for n in (1, ranks)) * 33 * 4 for share in (1, hot)
    )
    cold = embeddings + count * (1 - hot) * 8
    assert sent.stock == embeddings + count * 8
    by_hand = all_hot * pure + (1 - all_hot) * (cold + mixed)
    assert sent.overlay == pytest.approx(by_hand, rel=0.03)


def test_tables_that_cannot_be_hot_send_as_much_in_each_mode() -> None:
    of = _profile(20_000, 5_000, np.arange(1.0, 20_001) ** -1.05, all_hot=0.0)
    assert of.predictions is not None
    none = Interval(0.0, 0.0, 0.0)
    cold = replace(of.predictions.tables["t"], hot_lookup_ratio=none)
    pair = [TableProfile(n, r, 32, ("g",), np.arange(0), 132) for n, r in (("u", 9), ("v", 99))]
    expected = replace(of.predictions, tables={**of.predictions.tables, "u": cold, "v": cold})
    both = FAEProfile((*of.tables, *pair), of.budget_bytes, expected)
    configs = [_Config(table) for table in both.tables]
    alone = expected_bytes(of, configs[:1], 64, 1024)  # type: ignore[arg-type]
    sent = expected_bytes(both, configs, 64, 1024)  # type: ignore[arg-type]
    more = [own - before for own, before in zip(sent, alone, strict=True)]
    assert more[0] > 0
    assert more == pytest.approx([more[0]] * 2)


def test_of_mixed_steps_alone_none_is_cheaper_than_the_stock_sharder() -> None:
    of = _profile(20_000, 5_000, np.arange(1.0, 20_001) ** -1.05, all_hot=0.0)
    sent = expected_bytes(of, [_Config(of.tables[0])], 2, 1024)  # type: ignore[arg-type]
    assert sent.stock < sent.overlay
    assert str(sent).startswith("overlay 1.")


@pytest.mark.usefixtures("lone_rank")
def test_auto_takes_the_cheaper_mode_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(sharder_module.logger, "info", lambda text, *of: said.append(text % of))
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
        assert (
            f"mode='auto' is {mode!r}: of 64 ranks, each is expected to send by overlay "
            in said[-1]
        )
    module = sharder.shard(collection, plan, env, torch.device("cpu"))
    assert not isinstance(module._overlay.rows, Partition)


def test_auto_needs_a_batch_size_and_predictions() -> None:
    one = case()
    with pytest.raises(SettingError, match="batch_size=None"):
        FAEEmbeddingBagCollectionSharder(profile_of(one), mode="auto")
    with pytest.raises(FAEError, match="a profile without predictions"):
        expected_bytes(profile_of(one), [], 2, 1)
    assert fae_sharder(one, profile_of(one))._batch_size is None
