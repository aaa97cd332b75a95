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
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import (
    EmbeddingBagConfig,
    EmbeddingConfig,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.clipping import GradientClipping, GradientClippingOptimizer
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from tests.fae import host_adam
from tests.fae.batches import Batch
from tests.fae.cases import OPTIMIZERS, Case, Table, profile_of
from tests.fae.compared import Trained, local
from tests.fae.processors import processors
from tests.fae.sharders import fae_sharder, stock_sharder
from trainobs.fae.sharding.sharder import FAEEmbeddingBagCollectionSharder

MOST = 0.02
"""To which layers' gradients are clipped, where they are."""

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
                tables=[_config(EmbeddingConfig, case, t) for t in case.tables],
                need_indices=case.with_ids,
            )
            by_table = self.collection.embedding_names_by_table()
            self.features = sum(by_table, [])[: -case.unused or None]
            self.over = nn.Linear(case.tables[0].dim, 1)
        else:
            self.collection = EmbeddingBagCollection(
                tables=[
                    _config(EmbeddingBagConfig, case, t, pooling=t.pooling) for t in case.tables
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


def _config(kind: Any, case: Case, table: Table, **more: Any) -> Any:
    return kind(
        data_type=case.type_of(table),
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
    if case.device == "cpu" and any("adam" in optimizer for optimizer in case.optimizers):
        host_adam.install()
    torch.manual_seed(case.seed)
    model = Model(case)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        if not _is_plain(name, case):
            _train_by(case, name.split(".")[-2], parameter)
    sharded = DistributedModelParallel(
        model, device=torch.device(case.device), plan=plan_of(model, case), sharders=[sharder]
    )
    sharded.load_state_dict(start)
    return sharded


def _train_by(case: Case, table: str, parameter: nn.Parameter) -> None:
    """Have a table's parameter trained in the backward."""
    optimizer = next(case.optimizer_of(t) for t in case.tables if t.name == table)
    settings = {"lr": case.learning_rate}
    if case.weight_decay and "adam" in optimizer:
        settings["weight_decay"] = case.weight_decay
    if optimizer != "sgd":
        settings["eps"] = 0.01  # or the first update is the sign of a sum that may round to zero
    apply_optimizer_in_backward(OPTIMIZERS[optimizer], [parameter], settings)


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
    result = Trained([], [], {})
    go_on(case, model, feed, result)
    look(case, model, result)
    return result


def look(case: Case, model: DistributedModelParallel, result: Trained) -> None:
    """Note what a training came to."""
    result.weights = {name: local(value) for name, value in model.state_dict().items()}
    for name, states in model.fused_optimizer.state_dict()["state"].items():
        for key, value in states.items():
            result.states[f"{name} {key}"] = local(value)
    for name, parameter in plain_parameters(case, model).items():
        assert parameter.grad is not None
        result.states[f"{name} gradient"] = local(parameter.grad)


def go_on(
    case: Case, model: DistributedModelParallel, feed: list[KeyedJaggedTensor], result: Trained
) -> None:
    """Train on more batches, and note losses and embeddings."""
    optimizer = _optimizer(case, model)
    steps = _piped if case.pipelined else _steps
    for loss, output in steps(case, model, optimizer, feed):
        result.losses.append(float(loss))
        result.outputs.append(output)


def _optimizer(case: Case, model: DistributedModelParallel) -> Any:
    """That of all parameters but tables; TorchRec's clipping one has these too."""
    plain = plain_parameters(case, model)
    if not case.clip.startswith("torchrec"):
        return torch.optim.SGD(plain.values(), lr=0.05)
    keyed = KeyedOptimizerWrapper(plain, lambda params: torch.optim.SGD(params, lr=0.05))
    return GradientClippingOptimizer(
        CombinedOptimizer([model.fused_optimizer, keyed]),
        clipping=GradientClipping(case.clip.split()[1]),
        max_gradient=MOST,
    )


def _piped(
    case: Case, model: DistributedModelParallel, optimizer: Any, feed: list[KeyedJaggedTensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    pipeline = TrainPipelineSparseDist(model, optimizer, torch.device(case.device))
    source = iter([Batch(kjt) for kjt in feed])
    for _ in feed:
        pooled = pipeline.progress(source)
        yield pooled.pow(2).mean(), pooled
    pipeline.detach()


def _steps(
    case: Case, model: DistributedModelParallel, optimizer: Any, feed: list[KeyedJaggedTensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    each = 1 + case.is_summed
    for first in range(0, len(feed), each):
        optimizer.zero_grad()
        given = [Batch(kjt.to(torch.device(case.device))) for kjt in feed[first : first + each]]
        found = [model(batch) for batch in given]
        sum(loss for loss, _ in found).backward()
        if case.clip == "torch norm":
            torch.nn.utils.clip_grad_norm_(model.parameters(), MOST)
        elif case.clip == "torch value":
            torch.nn.utils.clip_grad_value_(model.parameters(), MOST)
        optimizer.step()
        for loss, pooled in found:
            yield loss.detach(), pooled


def sharded_alone(one: Case, env: ShardingEnv, mode: str) -> nn.Module:
    """The collection of a case with hot rows, and nothing around it."""
    return sharded_by(FAEEmbeddingBagCollectionSharder(profile_of(one), mode), one, env)


def sharded_by(sharder: Any, one: Case, env: ShardingEnv) -> nn.Module:
    """The same by any sharder of bags."""
    torch.manual_seed(0)
    model = nn.Module()
    model.collection = Model(one).collection
    apply_optimizer_in_backward(torch.optim.SGD, model.collection.parameters(), {"lr": 0.1})
    return sharder.shard(model.collection, plan_of(model, one).plan["collection"], env)
