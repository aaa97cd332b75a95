"""What the sharder refuses, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    UserEnabledConfigDefinition,
    WeightDecayMode,
)
from tensordict import TensorDict
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
from torchrec.distributed.mc_embeddingbag import ManagedCollisionEmbeddingBagCollectionSharder
from torchrec.distributed.types import ShardingEnv, ShardingEnv2D
from torchrec.modules.embedding_configs import DataType, PoolingType
from torchrec.modules.feature_processor_ import PositionWeightedModule
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.optimizers import LAMB
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.fae.batches import Batch, batches, remark
from tests.fae.cases import profile_of
from tests.fae.parity import SEQUENCES, Model, build, fae_sharder, plan_of
from tests.fae.ranks import Ranks
from tests.fae.small import case, fed
from trainobs.core.errors import FAEError, SettingError
from trainobs.fae import FAEProfile
from trainobs.fae.kjt.bitmap import bitmap_bytes
from trainobs.fae.kjt.split import SlotMap, read_mark, split
from trainobs.fae.sharding import planner, sharded
from trainobs.fae.sharding.checks import check_replicas
from trainobs.fae.sharding.sharder import FAEEmbeddingBagCollectionSharder


@pytest.mark.usefixtures("lone_rank")
def test_a_packed_batch_of_other_hot_rows_is_refused() -> None:
    one = case()
    model = build(one, FAEEmbeddingBagCollectionSharder(profile_of(one)))
    other = replace(one, tables=(replace(one.tables[0], hot=(1, 3)), one.tables[1]))
    with pytest.raises(FAEError, match="pack and shard with one profile"):
        model(Batch(fed(other)[0]))


@pytest.mark.usefixtures("lone_rank")
def test_a_pure_batch_with_cold_lookups_is_refused() -> None:
    one = case()
    model = build(one, FAEEmbeddingBagCollectionSharder(profile_of(one)))
    apart = split(batches(one, 0)[0][1], SlotMap.from_profile(profile_of(one)))
    mark = read_mark(apart)
    assert mark is not None
    with pytest.raises(FAEError, match="cold lookups in a batch that is marked as pure"):
        model(Batch(remark(apart, mark._replace(pure=True))))


@SEQUENCES
@pytest.mark.usefixtures("lone_rank")
def test_a_batch_that_lacks_keys_or_has_them_in_another_order_is_refused(sequences: bool) -> None:
    one = case(kinds=("pure",), sequences=sequences)
    model = build(one, fae_sharder(one, profile_of(one)))
    (pure,) = fed(one)
    cold, _ = pure.split([3, 3])
    lacking = (
        (cold.permute([0, 2]), "no feature 'f1' among"),
        (pure.permute([0, 1, 3, 4]), "no feature 'f2' among"),
        (pure.permute([0, 1, 2, 3, 5]), "no feature 'f1' among"),
        (pure.permute([5, 4, 3, 2, 1, 0]), "in another order than"),
        (pure.permute([2, 1, 0, 3, 4, 5]), None),
    )
    for kjt, found in lacking[:-1]:
        with pytest.raises(FAEError) as error:
            model(Batch(kjt))
        assert found in error.value.found
    for kjt in (pure, lacking[-1][0]):
        model(Batch(kjt))


@SEQUENCES
@pytest.mark.usefixtures("lone_rank")
def test_keys_that_come_twice_or_moved_since_the_first_batch_are_refused(sequences: bool) -> None:
    # TorchRec would look at the first of two, and at the places of the first batch's keys
    one = case(kinds=("plain",), sequences=sequences)
    model = build(one, fae_sharder(one, profile_of(one)))
    (kjt,) = fed(one)
    with pytest.raises(ValueError, match="keys must be unique"):
        model(Batch(kjt.permute([0, 1, 2, 1])))
    with pytest.raises(FAEError, match=r"keys that come twice: \['f1'\]"):
        model(Batch(kjt.permute([0, 1, 2, 1])))
    model(Batch(kjt))
    with pytest.raises(FAEError, match=r"keys \['f2', 'f1', 'f0'\]; the first batch had \['f0'"):
        model(Batch(kjt.permute([2, 1, 0])))


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize(
    ("sharding", "under"), [("row_wise", "sharded"), ("table_wise", "sharded"), ("row_wise", "")]
)
def test_learned_weights_are_refused(sharding: str, under: str) -> None:
    one = case(sharding, kinds=("plain",), weighted=True)
    sums = replace(one.tables[1], pooling=PoolingType.SUM)
    one = replace(one, tables=(one.tables[0], sums))
    collection = Model(one).collection
    apply_optimizer_in_backward(torch.optim.SGD, collection.parameters(), {"lr": 0.1})
    whole: Any = nn.ModuleDict({"collection": collection})
    plan = plan_of(whole, one).plan["collection"]
    weights = {f"f{i}": PositionWeightedModule(8) for i in range(3)}
    model = FeatureProcessedEmbeddingBagCollection(collection, weights)
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    inner = FAEEmbeddingBagCollectionSharder(profile_of(one))
    device = torch.device("cpu")
    if under:
        outer = FeatureProcessedEmbeddingBagCollectionSharder(inner)
        model = outer.shard(model, plan, env, device)
    else:
        model._embedding_bag_collection = inner.shard(collection, plan, env, device)
    (kjt,) = fed(one)
    kjt = KeyedJaggedTensor(keys=kjt.keys(), values=kjt.values(), lengths=kjt.lengths())
    with pytest.raises(FAEError, match="stock sharder") as error:
        model(kjt).values()
    assert ("learned" in error.value.found) == (sharding == "row_wise")


@SEQUENCES
@pytest.mark.parametrize("order", [("pure", "cold"), ("cold", "pure")])
@pytest.mark.usefixtures("lone_rank")
def test_a_lookup_of_the_other_kind_before_the_backward_is_refused(
    order: tuple[str, str], sequences: bool
) -> None:
    # in mode "paper" what the backward of the first one trained would be overwritten
    one = case(kinds=order, sequences=sequences, mode="paper")
    model = build(one, fae_sharder(one, profile_of(one)))
    losses = [model(Batch(kjt))[0] for kjt in fed(one)]
    with pytest.raises(FAEError, match="looked up before this one's backward"):
        losses[0].backward()
    losses[1].backward()
    for kjt in fed(one):
        model(Batch(kjt))[0].backward()


@SEQUENCES
@pytest.mark.usefixtures("lone_rank")
def test_a_tensor_dict_is_looked_up_as_the_stock_sharder_does(sequences: bool) -> None:
    one = case(kinds=("plain",), sequences=sequences)
    (kjt,) = fed(one)
    parts = {
        key: torch.nested.nested_tensor_from_jagged(part.values(), part.offsets())
        for key, part in kjt.to_dict().items()
    }
    batch = TensorDict(parts, batch_size=[kjt.stride()])  # type: ignore[arg-type]
    model = build(one, fae_sharder(one, profile_of(one)))
    assert torch.equal(model(Batch(kjt))[1], model(Batch(batch))[1])  # type: ignore[arg-type]


def _other_rows(profile: FAEProfile) -> FAEProfile:
    return replace(profile, tables=(replace(profile.tables[0], row_count=21), *profile.tables[1:]))


def _no_table(profile: FAEProfile) -> FAEProfile:
    return replace(profile, tables=profile.tables[1:])


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize(
    ("change", "message"), [(_other_rows, "rows 20, calibrated with 21"), (_no_table, "'t0'")]
)
def test_a_profile_of_another_model_is_refused(
    change: Callable[[FAEProfile], FAEProfile], message: str
) -> None:
    one = case()
    with pytest.raises(FAEError, match=message):
        build(one, FAEEmbeddingBagCollectionSharder(change(profile_of(one))))


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("lamb", "optimizer lamb, which was not tested with hot rows"),
        ("settings of Adam", "found: extra_optimizer_config="),
        ("clipping", "gradient_clipping of means that FBGEMM pools"),
        ("outputs", "output_dtype=int8"),
        ("bfloat16 tables", "rows of BF16"),
        ("half bytes", "rows of INT4"),
        ("grid means", "means under grid_shard"),
        ("decay", "row-wise Adagrad with weight_decay on hosts"),
        ("weighted means", "weighted means under table_wise"),
    ],
)
def test_what_could_not_be_exact_is_refused(what: str, message: str) -> None:
    one = case()
    collection = Model(one).collection
    configs = collection._embedding_bag_configs
    settings: dict[str, object] = {}
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD
    if what == "lamb":
        optimizer = LAMB
    elif what == "settings of Adam":
        optimizer = torch.optim.Adam
        settings["extra_optimizer_config"] = UserEnabledConfigDefinition(True)
    elif what == "decay":
        optimizer = RowWiseAdagrad
        settings = {"weight_decay": 0.1, "weight_decay_mode": WeightDecayMode.L2}
    elif what == "clipping":
        settings["gradient_clipping"] = True
    elif what == "outputs":
        settings["output_dtype"] = DataType.INT8
    elif what == "bfloat16 tables":
        configs[0].data_type = DataType.BF16
    elif what == "half bytes":
        configs[0].data_type = DataType.INT4
    elif what == "grid means":
        one = replace(one, tables=(one.tables[0], replace(one.tables[1], sharding="grid_shard")))
    else:
        collection._is_weighted = True
    apply_optimizer_in_backward(optimizer, collection.parameters(), {"lr": 0.1})
    model = nn.Module()
    model.collection = collection
    plan = plan_of(model, one).plan["collection"]
    sharder = FAEEmbeddingBagCollectionSharder(profile_of(one), fused_params=settings)
    with pytest.raises(FAEError, match=message):
        sharder.shard(collection, plan, ShardingEnv.from_process_group(dist.group.WORLD))


@pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
def test_replicas_that_each_rank_would_round_by_chance_are_refused(pair: Ranks, mode: str) -> None:
    for said in pair.run(_half_precision, mode):
        assert ("stochastic rounding" in said["stochastic"]) == (mode != "partitioned")
        assert said["nearest"] == said["single precision"] == said["on a host"] == ""


def _half_precision(rank: int, mode: str) -> dict[str, str]:
    """What is said of replicas on several GPUs; they lie on a host, but are told to be on one."""
    nearest = {"stochastic_rounding": False}
    return {
        "stochastic": _half_refused(mode, DataType.FP16, {}, "cuda"),
        "nearest": _half_refused(mode, DataType.FP16, nearest, "cuda"),
        "single precision": _half_refused(mode, DataType.FP32, {}, "cuda"),
        "on a host": _half_refused(mode, DataType.FP16, {}, "cpu"),
    }


def _half_refused(mode: str, precision: DataType, settings: dict[str, Any], device: str) -> str:
    one = case(mode=mode, world_size=2)
    model = nn.Module()
    model.collection = Model(one).collection
    for config in model.collection._embedding_bag_configs:
        config.data_type = precision
    apply_optimizer_in_backward(torch.optim.SGD, model.collection.parameters(), {"lr": 0.1})
    plan = plan_of(model, one).plan["collection"]
    sharder = FAEEmbeddingBagCollectionSharder(profile_of(one), mode, fused_params=settings)
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    with pytest.MonkeyPatch.context() as patch:
        told = torch.device(device)
        patch.setattr(sharded, "check_replicas", lambda layout, _: check_replicas(layout, told))
        try:
            sharder.shard(model.collection, plan, env)
        except FAEError as error:
            return error.found
    return ""


@SEQUENCES
@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("mode", ["overlay", "partitioned", "paper"])
def test_a_cache_that_would_keep_older_rows_is_refused(mode: str, sequences: bool) -> None:
    one = case(mode=mode, sequences=sequences)
    collection = Model(one).collection
    apply_optimizer_in_backward(torch.optim.SGD, collection.parameters(), {"lr": 0.1})
    model = nn.Module()
    model.collection = collection
    plan = plan_of(model, one).plan["collection"]
    plan["t1"].compute_kernel = "fused_uvm_caching"
    sharder = fae_sharder(one, profile_of(one))
    offered = "fused_uvm_caching" in sharder.compute_kernels("table_wise", "cuda")
    assert offered == (mode != "paper")
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    if offered:
        sharder.shard(collection, plan, env)
        return
    with pytest.raises(FAEError, match="table 't1'\n  found: compute kernel 'fused_uvm_caching'"):
        sharder.shard(collection, plan, env)


@pytest.mark.usefixtures("lone_rank")
def test_tables_that_no_optimizer_trains_in_the_backward_are_refused_and_why() -> None:
    one = case()
    model = Model(one)
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    plan = plan_of(model, one).plan["collection"]  # TorchRec plans these tables dense
    with pytest.raises(FAEError, match="kernel 'dense'.*\n  do:    apply_optimizer_in_backward"):
        fae_sharder(one, profile_of(one)).shard(model.collection, plan, env)


@pytest.mark.usefixtures("lone_rank")
def test_groups_of_ranks_that_average_their_tables_are_refused() -> None:
    one, world = case(), dist.group.WORLD
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
    averaging = ShardingEnv2D(world, world, world, mesh)
    for env, found in (
        (averaging, "torchrec/pull/2554"),
        (ShardingEnv.from_local(1, 0), "without"),
    ):
        collection = Model(one).collection
        apply_optimizer_in_backward(torch.optim.SGD, collection.parameters(), {"lr": 0.1})
        model: Any = nn.ModuleDict({"collection": collection})
        plan = plan_of(model, one).plan["collection"]
        with pytest.raises(FAEError, match=found):
            FAEEmbeddingBagCollectionSharder(profile_of(one)).shard(collection, plan, env)


@pytest.mark.usefixtures("lone_rank")
def test_a_reshard_is_refused() -> None:
    one = case()
    model = build(one, FAEEmbeddingBagCollectionSharder(profile_of(one)))
    moved = {"t0": model.plan.plan["collection"]["t0"]}
    with pytest.raises(FAEError, match="a reshard of t0"):
        model.reshard({"collection": (0.0, moved)}, "collection")


@pytest.mark.usefixtures("lone_rank")
def test_a_collection_inside_of_managed_collisions_is_refused() -> None:
    one, host = case("row_wise"), torch.device("cpu")
    model = Model(one)
    bags: Any = model.collection
    apply_optimizer_in_backward(torch.optim.SGD, bags.parameters(), {"lr": 0.1})
    evicts = {"eviction_interval": 2, "eviction_policy": DistanceLFU_EvictionPolicy()}
    maps: dict[str, Any] = {
        t.name: MCHManagedCollisionModule(t.rows, host, input_hash_size=4000, **evicts)
        for t in one.tables
    }
    configs = bags.embedding_bag_configs()
    whole = ManagedCollisionEmbeddingBagCollection(bags, ManagedCollisionCollection(maps, configs))
    sharder = ManagedCollisionEmbeddingBagCollectionSharder(fae_sharder(one, profile_of(one)))
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    with pytest.raises(FAEError, match="as managed collisions do"):
        sharder.shard(whole, plan_of(model, one).plan["collection"], env, host)


@pytest.mark.usefixtures("lone_rank")
def test_a_tracker_that_would_miss_the_hot_lookups_is_refused() -> None:
    one = case()
    model = build(one, FAEEmbeddingBagCollectionSharder(profile_of(one)))
    with pytest.raises(FAEError, match="would see cold lookups only"):
        model.module.collection.register_post_lookup_tracker_fn(print)


@pytest.mark.usefixtures("lone_rank")
def test_hot_rows_that_no_device_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one = replace(case(), optimizer="adagrad")
    profile = profile_of(one)  # which counts no optimizer's state
    needed = 2 * profile.hot_bytes + bitmap_bytes(table.row_count for table in profile.tables)
    for free, is_enough in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(planner, "_host_bytes", lambda: free)  # noqa: B023
        with nullcontext() if is_enough else pytest.raises(FAEError, match="smaller hot_bytes"):
            build(one, FAEEmbeddingBagCollectionSharder(profile))


def test_a_mode_that_there_is_not_is_refused() -> None:
    with pytest.raises(SettingError, match="give one of overlay, paper, partitioned"):
        FAEEmbeddingBagCollectionSharder(profile_of(case()), mode="parer")  # type: ignore[arg-type]
