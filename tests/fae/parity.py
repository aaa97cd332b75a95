"""Random models and batches, trained by the stock sharder and by FAE's, and compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    grid_shard,
    row_wise,
    table_row_wise,
    table_wise,
)
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import (
    EmbeddingBagConfig,
    EmbeddingConfig,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from tests.fae import host_adam
from tests.fae.batches import Batch, batches, packed
from tests.fae.cases import OPTIMIZERS, Case, Table, profile_of
from tests.fae.compared import Trained, difference, local
from tests.fae.processors import processors
from tests.fae.sharders import fae_sharder, stock_sharder
from trainobs.fae.kjt.split import SlotMap

SEQUENCES = pytest.mark.parametrize("sequences", [False, True], ids=["bags", "sequences"])
"""Of a test that holds for an EmbeddingBagCollection and for an EmbeddingCollection."""


class Model(nn.Module):
    """A collection and a layer over it."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.collection: nn.Module
        self.features: list[str] | None = None
        if case.sequences:
            self.collection = EmbeddingCollection(
                tables=[_config(EmbeddingConfig, t, data_type=case.data_type) for t in case.tables],
                need_indices=case.with_ids,
            )
            by_table = self.collection.embedding_names_by_table()
            self.features = sum(by_table, [])[: -case.unused or None]
            self.over = nn.Linear(case.tables[0].dim, 1)
        else:
            self.collection = EmbeddingBagCollection(
                tables=[
                    _config(EmbeddingBagConfig, t, pooling=t.pooling, data_type=case.data_type)
                    for t in case.tables
                ],
                is_weighted=case.weighted,
            )
            self.over = nn.Linear(sum(t.dim * len(t.features) for t in case.tables), 1)
        if case.processed:
            features = dict.fromkeys(feature for t in case.tables for feature in t.features)
            self.collection = FeatureProcessedEmbeddingBagCollection(
                self.collection, processors(list(features), case.processed)
            )

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        found = self.collection(batch.kjt)
        if self.features is None:
            pooled = found.values().float()
            output = self.over(pooled)
            return output.pow(2).mean() + pooled.pow(2).mean(), pooled.detach()
        embeddings, places, all_of_it = _of_sequences(found, self.features)
        output = self.over(embeddings) * places.cos()  # so that order matters
        return output.sum().pow(2) + embeddings.pow(2).sum(), all_of_it


@torch.fx.wrap  # the pipeline traces the model, but not this
def _of_sequences(
    found: dict[str, JaggedTensor], features: list[str]
) -> tuple[Tensor, Tensor, Tensor]:
    """The embeddings, their places, and all there is about them, to be compared."""
    embeddings = torch.cat([found[feature].values() for feature in features]).float()
    everything = torch.cat([_flat(found[feature]) for feature in features])
    return embeddings, torch.arange(1.0, len(embeddings) + 1).unsqueeze(1), everything


def _config(kind: Any, table: Table, **more: Any) -> Any:
    return kind(
        name=table.name,
        num_embeddings=table.rows,
        embedding_dim=table.dim,
        feature_names=list(table.features),
        **more,
    )


def _flat(sequence: JaggedTensor) -> Tensor:
    """All that is known of it."""
    ids = sequence.weights_or_none()
    parts = [sequence.values().detach(), sequence.lengths(), *([] if ids is None else [ids])]
    return torch.cat([part.flatten().float() for part in parts])


def plan_of(model: Model, case: Case) -> ShardingPlan:
    """The case's plan, written out."""
    ranks = case.world_size
    makers: dict[str, Any] = {
        "table_wise": lambda i: table_wise(rank=i % ranks),
        "row_wise": lambda i: row_wise(),
        "column_wise": lambda i: column_wise(ranks=[0, ranks - 1]),
        "table_row_wise": lambda i: table_row_wise(host_index=0),
        "grid_shard": lambda i: grid_shard(host_indexes=[0]),
        "data_parallel": lambda i: _replicated(case),
    }
    plan = construct_module_sharding_plan(
        model.collection,
        {t.name: makers[t.sharding](i) for i, t in enumerate(case.tables)},
        sharder=fae_sharder(case, profile_of(case)),  # names all kinds but data_parallel
        local_size=ranks,
        world_size=ranks,
        device_type=case.device,
    )
    for table in plan.values():
        if table.sharding_type != "data_parallel":
            table.compute_kernel = case.kernel or table.compute_kernel
    return ShardingPlan({"collection": plan})


def _replicated(case: Case) -> Any:
    """A data_parallel plan, which FAE's sharder does not offer."""
    plan: Any = data_parallel()
    return lambda *about: plan(*about[:-1], stock_sharder(case))


def build(case: Case, sharder: Any) -> DistributedModelParallel:
    """The case's model, sharded; the same weights whichever sharder."""
    if "adam" in case.optimizer and case.device == "cpu":
        host_adam.install()
    torch.manual_seed(case.seed)
    model = Model(case)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    settings = {"lr": case.learning_rate}
    if case.weight_decay:
        settings["weight_decay"] = case.weight_decay
    if case.optimizer != "sgd":
        settings["eps"] = 0.01  # or the first update is the sign of a sum that may round to zero
    trained = [p for name, p in model.named_parameters() if not _is_plain(name, case)]
    apply_optimizer_in_backward(OPTIMIZERS[case.optimizer], trained, settings)
    sharded = DistributedModelParallel(
        model, device=torch.device(case.device), plan=plan_of(model, case), sharders=[sharder]
    )
    sharded.load_state_dict(start)
    return sharded


def _is_plain(name: str, case: Case) -> bool:
    """Whether a parameter is trained by an optimizer of its own, and not by that of the tables."""
    table = name.split(".")[-2]
    return (
        table == "over"
        or "_feature_processors" in name
        or any(t.name == table and t.is_replicated for t in case.tables)
    )


def plain_parameters(case: Case, model: nn.Module) -> dict[str, nn.Parameter]:
    """Those that an optimizer steps, and no table."""
    return {name: p for name, p in model.named_parameters() if _is_plain(name, case)}


def train(case: Case, model: DistributedModelParallel, feed: list[KeyedJaggedTensor]) -> Trained:
    """Train on the batches."""
    plain = plain_parameters(case, model)
    optimizer = torch.optim.SGD(plain.values(), lr=0.05)
    result = Trained([], [], {})
    for loss, output in _steps(case, model, optimizer, feed):
        result.losses.append(float(loss))
        result.outputs.append(output)
    result.weights = {name: local(value) for name, value in model.state_dict().items()}
    for name, states in model.fused_optimizer.state_dict()["state"].items():
        for key, value in states.items():
            result.states[f"{name} {key}"] = local(value)
    for name, parameter in plain.items():
        assert parameter.grad is not None
        result.states[f"{name} gradient"] = local(parameter.grad)
    return result


def _steps(
    case: Case, model: nn.Module, optimizer: Any, feed: list[KeyedJaggedTensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    if case.pipelined:
        outputs: list[Tensor] = []
        pipeline = TrainPipelineSparseDist(model, optimizer, torch.device(case.device))
        source = iter([Batch(kjt) for kjt in feed])
        for _ in feed:
            pooled = pipeline.progress(source)
            outputs.append(pooled)
            yield pooled.pow(2).mean(), pooled
        return
    for kjt in feed:
        optimizer.zero_grad()
        loss, pooled = model(Batch(kjt.to(torch.device(case.device))))
        loss.backward()
        optimizer.step()
        yield loss.detach(), pooled


def run(case: Case, rank: int = 0) -> dict[str, float]:
    """Train a case both ways and compare."""
    profile = profile_of(case)
    feed = batches(case, rank)
    slots = SlotMap.from_profile(profile)
    stock = build(case, stock_sharder(case))
    expected = train(case, stock, [kjt for _, kjt in feed])
    fae = build(case, fae_sharder(case, profile))
    got = train(case, fae, [packed(kind, kjt, slots) for kind, kjt in feed])
    return difference(expected, got)
