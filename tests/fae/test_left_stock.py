"""Collections whose hot rows no sharder keeps, and what is said of them."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import get_default_sharders
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.feature_processor_ import PositionWeightedModule
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

from trainobs.fae import (
    FAEEmbeddingBagCollectionSharder,
    FAEEmbeddingCollectionSharder,
    FAEProfile,
    TableProfile,
)

pytestmark = pytest.mark.usefixtures("lone_rank")

SHAPE: dict[str, Any] = {"num_embeddings": 20, "embedding_dim": 8}


class _Bags(EmbeddingBagCollection):
    """Of a class that no sharder is for."""


def _bags(kind: Any = EmbeddingBagCollection, **settings: Any) -> Any:
    return kind([EmbeddingBagConfig(name="b", feature_names=["f"], **SHAPE)], **settings)


def _model(bags: nn.Module | None = None) -> nn.Module:
    """One with bags and sequences."""
    model = nn.Module()
    model.bags = bags or _bags()
    model.seq = EmbeddingCollection([EmbeddingConfig(name="s", feature_names=["g"], **SHAPE)])
    model.over = nn.Linear(8, 1)  # DistributedDataParallel comes around it
    return model


def _profile(*hot: str) -> FAEProfile:
    """One of both, with hot rows in some."""
    ids = {name: np.arange(5 * (name in hot)) for name in "bs"}
    return FAEProfile(
        (
            TableProfile("b", 20, 8, ("f",), ids["b"], 36),
            TableProfile("s", 20, 8, ("g",), ids["s"], 36, is_sequence=True),
        ),
        budget_bytes=1000,
    )


def _bag_sharder(*hot: str) -> Any:
    return FAEEmbeddingBagCollectionSharder(_profile(*hot))


def _seq_sharder(*hot: str) -> Any:
    return FAEEmbeddingCollectionSharder(_profile(*hot))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Any:
    """What is said as a model is wrapped."""

    def wrap(model: nn.Module, sharders: list[Any] | None, plan: Any = None) -> list[str]:
        logging.disable(logging.NOTSET)
        DistributedModelParallel(model, sharders=sharders, plan=plan)
        logging.disable(logging.WARNING)
        return [one.getMessage() for one in caplog.records if one.name == "trainobs"]

    return wrap


@pytest.mark.parametrize("others", [[], [EmbeddingCollectionSharder()]], ids=["none", "stock"])
def test_a_collection_that_no_sharder_with_a_profile_is_for(said: Any, others: list[Any]) -> None:
    (told,) = said(_model(), [_bag_sharder("b", "s"), *others])
    assert told.splitlines() == [
        "hot rows of s are not used",
        "  found: seq, an EmbeddingCollection, a class for which no sharder with a profile was "
        "given",
        "  do:    give FAEEmbeddingCollectionSharder(profile) too; or calibrate without its "
        "tables. Do not give it packed batches",
    ]


def test_a_sharder_of_no_collection(said: Any) -> None:
    model = _model()
    del model.seq
    (told,) = said(model, [_seq_sharder("b", "s")])
    assert "hot rows of b are not used" in told
    assert "give FAEEmbeddingBagCollectionSharder(profile) too" in told


def test_the_last_sharder_of_a_class_is_the_one_that_torchrec_takes(said: Any) -> None:
    first, second = said(_model(), [_bag_sharder("b", "s"), *get_default_sharders()])
    assert "bags, for which TorchRec takes the last sharder of its class, an Embedding" in first
    assert "or put FAE's behind it" in first
    assert "hot rows of s" in second


def test_a_class_of_somebodys(said: Any) -> None:
    (told,) = said(_model(_bags(_Bags)), [_bag_sharder("b"), _seq_sharder()])
    assert "found: bags, a _Bags, a class for which no" in told
    assert "do:    make it an EmbeddingBagCollection;" in told


def test_what_the_plan_leaves_out(said: Any) -> None:
    model, sharders = _model(), [_bag_sharder("b", "s"), _seq_sharder("b", "s")]
    plan = EmbeddingShardingPlanner().collective_plan(model, sharders[:1], dist.group.WORLD)
    (told,) = said(model, sharders, plan)
    assert "found: seq, which the plan does not shard" in told


def test_bags_within_another_module(said: Any) -> None:
    processors = {"f": PositionWeightedModule(3)}
    inner = _bags(is_weighted=True)
    model = _model(FeatureProcessedEmbeddingBagCollection(inner, processors))
    stock = FeatureProcessedEmbeddingBagCollectionSharder()
    (told,) = said(model, [_bag_sharder("b"), stock])
    assert "_embedding_bag_collection, sharded by the sharder of a module around it" in told


@pytest.mark.parametrize(
    "sharders",
    [
        [_bag_sharder("b", "s"), _seq_sharder("b", "s")],
        [*get_default_sharders(), _bag_sharder("b", "s"), _seq_sharder("b", "s")],
        [_bag_sharder("b")],  # the others have no hot rows
        [FAEEmbeddingBagCollectionSharder(FAEProfile(_profile("b").tables[:1], 1000))],
        None,
    ],
    ids=["all", "all behind TorchRec's", "cold", "others in no profile", "stock"],
)
def test_nothing_is_said_where_it_is_meant(said: Any, sharders: list[Any] | None) -> None:
    assert said(_model(), sharders) == []
