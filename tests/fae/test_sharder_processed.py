"""Collections under feature processors, which learn the weight of each place in a bag."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.fp_embeddingbag import ShardedFeatureProcessedEmbeddingBagCollection
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.feature_processor_ import FeatureProcessor, PositionWeightedModule
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from tests.fae.batches import Batch, batches, packed
from tests.fae.cases import Case, Table, profile_of
from tests.fae.compared import difference
from tests.fae.course import run
from tests.fae.parity import Model, build, plan_of, stock_sharder, train
from tests.fae.random_cases import PROCESSORS, random_case, with_processors
from tests.fae.ranks import Ranks
from tests.fae.sharders import fae_sharder
from tests.fae.small import case, fed, whole
from trainobs.core.errors import FAEError
from trainobs.fae import (
    FAEEmbeddingBagCollectionSharder,
    FAEFeatureProcessedEmbeddingBagCollectionSharder,
    FAEProfile,
    calibrate,
    pack,
)
from trainobs.fae.kjt.split import SlotMap, read_mark, split
from trainobs.fae.sharding.hot_kernels import HotKernel
from trainobs.fae.sharding.torchrec_private import StockProcessed

TOLERANCE = 4e-6
CASES = 12
ALL_KINDS = ("plain", "pure", "cold", "pure", "plain")


def _processed(**changes: Any) -> Case:
    return with_processors(replace(case(kinds=ALL_KINDS), **changes), "collection")


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("kind", PROCESSORS)
def test_one_rank_learns_what_it_learns_without_hot_rows(kind: str) -> None:
    _check_all(0, range(CASES), 1, kind)


@pytest.mark.parametrize("kind", PROCESSORS)
def test_two_ranks_learn_what_they_learn_without_hot_rows(kind: str, pair: Ranks) -> None:
    pair.run(_check_all, range(CASES), 2, kind)


def test_four_ranks_learn_what_they_learn_without_hot_rows() -> None:
    ranks = Ranks(4)
    try:
        ranks.run(_check_all, range(CASES // 2), 4, "collection")
    finally:
        ranks.stop()


@pytest.mark.parametrize("mode", ["overlay", "partitioned", "paper"])
def test_ranks_whose_batches_are_all_hot_learn_the_same(mode: str, pair: Ranks) -> None:
    assert max(pair.run(_worst, _processed(world_size=2, mode=mode, kinds=("pure",) * 4))) < (
        TOLERANCE
    )


def test_a_difference_is_found(pair: Ranks) -> None:
    one = _processed(world_size=2)
    assert max(pair.run(_worst, one)) < TOLERANCE
    assert max(pair.run(_worst_spoiled, one, HotKernel, "weight_gradients")) > 100 * TOLERANCE
    assert max(pair.run(_worst_spoiled, one, StockProcessed, "note_places")) > 100 * TOLERANCE


def _check_all(rank: int, seeds: range, world_size: int, kind: str) -> None:
    for seed in seeds:
        one = with_processors(random_case(seed, world_size), kind)
        worst = run(one, rank)
        assert max(worst.values()) < one.tolerance, (worst, one)


def _worst(rank: int, one: Case) -> float:
    return max(run(one, rank).values())


def _worst_spoiled(rank: int, one: Case, of: Any, name: str) -> float:
    """The same, where a method gives zeros."""
    zeros: dict[str, Callable[..., Any]] = {
        "weight_gradients": lambda _, lookups, *rest: torch.zeros(len(lookups.values())),
        "note_places": lambda self, kjt: [
            setattr(p, "_pre_processed", True) for p in self.processors
        ],
    }
    with patch.object(of, name, zeros[name]):
        return _worst(rank, one)


@pytest.mark.usefixtures("lone_rank")
def test_packed_batches_train_what_the_stock_sharder_trains() -> None:
    table = Table("t0", 20, 8, PoolingType.SUM, ("f0", "f1"), "row_wise", tuple(range(0, 20, 2)))
    one = replace(_processed(kinds=("plain", "pure") * 8), tables=(table,))
    profile = profile_of(one)
    loader = [kjt for _, kjt in batches(one, 0)]
    got = list(pack(loader, profile, window=16))
    assert {read_mark(kjt) is None for kjt in got} == {True, False}
    order = [whole(kjt, profile) for kjt in got]
    stock = train(one, build(one, stock_sharder(one)), order)
    assert max(difference(stock, train(one, build(one, _sharder(one)), got)).values()) < TOLERANCE


def _sharder(one: Case) -> Any:
    return fae_sharder(one, profile_of(one))


@pytest.mark.usefixtures("lone_rank")
def test_torchrecs_planner_plans_it_and_it_is_one_of_torchrecs() -> None:
    one = _processed()
    start = Model(one).state_dict()
    model = DistributedModelParallel(Model(one), sharders=[_sharder(one)])
    assert isinstance(model.module.collection, ShardedFeatureProcessedEmbeddingBagCollection)
    assert model.state_dict().keys() == start.keys()
    for kjt in fed(one):
        model(Batch(kjt))[0].backward()


@pytest.mark.usefixtures("lone_rank")
def test_a_checkpoint_goes_to_the_stock_module() -> None:
    one = _processed()
    ours, stock = build(one, _sharder(one)), build(one, stock_sharder(one))
    train(one, ours, fed(one))
    stock.load_state_dict(ours.state_dict())
    kjt = batches(one, 0)[0][1]
    assert torch.allclose(ours(Batch(kjt))[1], stock(Batch(kjt))[1], atol=1e-6)


@pytest.mark.usefixtures("lone_rank")
def test_the_weights_of_the_caller_stay_as_they_are() -> None:
    one = _processed()
    kjt = batches(one, 0)[0][1]
    given = KeyedJaggedTensor(
        kjt.keys(), kjt.values(), torch.full(kjt.values().shape, 7.0), kjt.lengths()
    )
    model = build(one, _sharder(one))
    assert torch.equal(model(Batch(kjt))[1], model(Batch(given))[1])
    assert kjt.weights_or_none() is None
    assert set(given.weights().tolist()) == {7.0}


def test_calibration_knows_whose_places_count(tmp_path: Any) -> None:
    one = _processed()
    model = Model(one)
    ids = torch.randint(0, 4, (6000,))
    kjt = KeyedJaggedTensor(["f0", "f1", "f2"], ids, lengths=torch.ones(6000, dtype=torch.int32))
    profile = calibrate([kjt], tables=model, hot_bytes=400, progress=False)
    assert all(table.is_positional for table in profile.tables)
    configs = model.collection.split()[1].embedding_bag_configs()  # type: ignore[operator]
    plain = calibrate([kjt], tables=configs, hot_bytes=400, progress=False)
    assert not any(table.is_positional for table in plain.tables)
    assert plain.fingerprint != profile.fingerprint
    profile.save(tmp_path / "profile")
    loaded = FAEProfile.load(tmp_path / "profile")
    assert all(table.is_positional for table in loaded.tables)
    assert loaded.fingerprint == profile.fingerprint
    assert SlotMap.from_profile(profile).keeps_order
    assert not SlotMap.from_profile(plain).keeps_order


@pytest.mark.usefixtures("lone_rank")
def test_a_mixed_batch_that_came_apart_is_refused() -> None:
    one = _processed()
    profile = profile_of(one)
    plain = replace(
        profile, tables=tuple(replace(table, is_positional=False) for table in profile.tables)
    )
    model = build(one, fae_sharder(one, plain))
    whole = batches(one, 0)[0][1]
    with pytest.raises(FAEError, match="bags of a feature processor") as error:
        model(Batch(split(whole, SlotMap.from_profile(plain))))
    assert "cold lookups in a batch that came apart" in error.value.found
    assert packed("mixed", whole, SlotMap.from_profile(profile)) is whole
    model(Batch(whole))


class _OfIds(FeatureProcessor):
    """Takes weights from ids, of which a part of a bag has others."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, features: JaggedTensor) -> JaggedTensor:
        weights = features.values() * self.scale
        return JaggedTensor(features.values(), weights, features.lengths())


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize(
    ("processor", "pooling", "found"),
    [
        (_OfIds, PoolingType.SUM, "a _OfIds, which must see whole bags: it has no pre_process"),
        (lambda: PositionWeightedModule(4), PoolingType.MEAN, "means, which TorchRec divides by"),
    ],
)
def test_what_could_not_be_exact_is_refused(
    processor: Callable[[], Any], pooling: PoolingType, found: str
) -> None:
    one = case(weighted=True, kinds=("plain",))
    tables = tuple(replace(t, pooling=pooling, sharding="row_wise") for t in one.tables)
    one = replace(one, tables=tables)
    collection = Model(one).collection
    apply_optimizer_in_backward(torch.optim.SGD, collection.parameters(), {"lr": 0.1})
    model = FeatureProcessedEmbeddingBagCollection(
        collection, {f"f{i}": processor() for i in range(3)}
    )
    whole: Any = nn.ModuleDict({"collection": collection})
    plan = plan_of(whole, one).plan["collection"]
    sharder = FAEFeatureProcessedEmbeddingBagCollectionSharder(profile_of(one))
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    with pytest.raises(FAEError) as error:
        sharder.shard(model, plan, env, torch.device("cpu"))
    assert found in error.value.found


def test_settings_are_those_of_the_sharder_of_its_tables() -> None:
    profile = profile_of(_processed())
    settings: Any = {"mode": "partitioned", "fused_params": {"learning_rate": 0.5}}
    ours = FAEFeatureProcessedEmbeddingBagCollectionSharder(profile, **settings)
    of_tables = FAEEmbeddingBagCollectionSharder(profile, **settings)
    assert ours.fused_params == of_tables.fused_params == settings["fused_params"]
    assert ours.sharding_types("cpu") == of_tables.sharding_types("cpu")
    for kind in ours.sharding_types("cuda"):
        assert ours.compute_kernels(kind, "cuda") == of_tables.compute_kernels(kind, "cuda")
