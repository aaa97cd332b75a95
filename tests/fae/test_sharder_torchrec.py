"""TorchRec's own tests of sharding, with this sharder in place of the stock one.

They train a model of several collections one step, sharded and whole, and compare predictions.
"""

from __future__ import annotations

import inspect
import itertools
import os
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec.distributed.embedding_types import ShardedEmbeddingModule
from torchrec.distributed.fbgemm_qcomm_codec import (
    CommType,
    QCommsConfig,
    get_qcomm_codecs_registry,
)
from torchrec.distributed.planner import ParameterConstraints
from torchrec.modules.embedding_configs import DataType, PoolingType

from tests.fae.ranks import Ranks
from tests.fae.torchrec_tests import (
    ModelParallelTestShared,
    SparseNN,
    sharding_single_rank_test_single_process,
)
from trainobs.fae import FAEProfile, TableProfile
from trainobs.fae.sharding.sharded import ShardedFAEModule
from trainobs.fae.sharding.sharded_processed import (
    ShardedFAEFeatureProcessedEmbeddingBagCollection,
)
from trainobs.fae.sharding.sharder import FAEEmbeddingBagCollectionSharder

SHARDINGS = ("table_wise", "row_wise", "column_wise", "table_column_wise", "table_row_wise")


class OneType(FAEEmbeddingBagCollectionSharder):
    """Restricted to one type of sharding, as TorchRec's own test sharders are."""

    def __init__(self, profile: FAEProfile, sharding: str, **settings: Any) -> None:
        super().__init__(profile, **settings)
        self._sharding = sharding

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return [self._sharding]


def hot_half(tables: list[Any]) -> FAEProfile:
    """Every second row is hot."""
    return FAEProfile(
        tuple(
            TableProfile(
                t.name,
                t.num_embeddings,
                t.embedding_dim,
                tuple(t.feature_names),
                np.arange(0, t.num_embeddings, 2),
                t.embedding_dim * 4,
            )
            for t in tables
        ),
        budget_bytes=1 << 20,
    )


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_one_rank(sharding: str) -> None:
    _train_as_torchrec_does(0, 1, sharding)


@pytest.mark.parametrize("sharding", [*SHARDINGS, "grid_shard"])
def test_two_ranks(pair: Ranks, sharding: str) -> None:
    pair.run(_train_as_torchrec_does, 2, sharding)


def _train_as_torchrec_does(rank: int, world_size: int, sharding: str) -> None:
    """Each of TorchRec's settings that its tests of sharding go through on hosts."""
    poolings = [PoolingType.SUM]
    if sharding != "grid_shard":  # of which TorchRec makes sums
        poolings.append(PoolingType.MEAN)
    precisions = [DataType.FP32, DataType.FP16]
    for pooling, precision in itertools.product(poolings, precisions):
        _train(rank, world_size, sharding, pooling, precision)
    if "row" not in sharding and sharding != "grid_shard":  # what gloo scatters is of one size
        _train(rank, world_size, sharding, variable_batch_size=True)
    _train(rank, world_size, sharding, indices_dtype=torch.int32, lengths_dtype=torch.int32)
    _train(rank, world_size, sharding, is_solo=True)
    if world_size > 1:
        coarse = QCommsConfig(forward_precision=CommType.FP16, backward_precision=CommType.BF16)
        _train(rank, world_size, sharding, qcomms_config=coarse)


def _train(
    rank: int,
    world_size: int,
    sharding: str,
    pooling: PoolingType = PoolingType.SUM,
    precision: DataType = DataType.FP32,
    is_solo: bool = False,
    **settings: Any,
) -> None:
    with patch.dict(os.environ):  # it makes ready for processes of its own
        shapes = ModelParallelTestShared()
        shapes.setUp(backend="gloo")
        shapes._build_tables_and_groups(data_type=precision)
    tables = shapes.tables if pooling is PoolingType.SUM else shapes.mean_tables
    groups = shapes.embedding_groups
    if is_solo:  # without the tables that share a feature, whose rows are all left where they are
        tables = tables[shapes.num_shared_features : shapes.num_features]
        groups = {"group_0": [feature for table in tables for feature in table.feature_names]}
    weighted = shapes.weighted_tables if pooling is PoolingType.SUM else None
    profile = hot_half([*tables, *(weighted or [])])
    registry = {}
    if "qcomms_config" in settings:
        registry = get_qcomm_codecs_registry(settings["qcomms_config"], device=torch.device("cpu"))
    sharder = OneType(
        profile, sharding, fused_params={"learning_rate": 0.1}, qcomm_codecs_registry=registry
    )
    group = dist.group.WORLD
    assert group is not None
    sharding_single_rank_test_single_process(
        pg=group,
        device=torch.device("cpu"),
        rank=rank,
        world_size=world_size,
        local_size=world_size,
        model_class=SparseNN,
        embedding_groups=groups,
        tables=tables,
        weighted_tables=weighted,
        sharders=[sharder],
        optim=EmbOptimType.EXACT_SGD,
        constraints={
            table.name: ParameterConstraints(sharding_types=[sharding], min_partition=4)
            for table in [*tables, *(weighted or [])]
        },
        random_seed=100,
        **settings,
    )


@pytest.mark.parametrize(
    "kind", [ShardedFAEModule, ShardedFAEFeatureProcessedEmbeddingBagCollection]
)
def test_pipelines_prefetch_by_the_arguments_of_torchrec(kind):
    """`TrainPipelinePrefetchEMS` gives no stream."""
    ours, theirs = (
        [(one.name, one.default) for one in inspect.signature(of.prefetch).parameters.values()]
        for of in (kind, ShardedEmbeddingModule)
    )
    assert ours == theirs
