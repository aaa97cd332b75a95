"""Random models and batches, trained by the stock sharder and by FAE's, and compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
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
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.optimizers import PartialRowWiseAdam
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from tests.fae import host_adam
from tests.fae.compared import Trained, difference, local
from tests.fae.processors import MOST_LOOKUPS, processors
from tests.fae.sharders import fae_sharder, stock_sharder
from trainobs.fae import FAEProfile, TableProfile
from trainobs.fae.kjt.split import SlotMap, SplitMark, read_mark, split

OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "rowwise_adagrad": RowWiseAdagrad,
    "adam": torch.optim.Adam,
    "partial_rowwise_adam": PartialRowWiseAdam,
}
TOLERANCES = {DataType.FP32: 4e-6, DataType.FP16: 4e-3, DataType.BF16: 3e-2}


SEQUENCES = pytest.mark.parametrize("sequences", [False, True], ids=["bags", "sequences"])
"""Of a test that holds for an EmbeddingBagCollection and for an EmbeddingCollection."""


@dataclass(frozen=True)
class Table:
    """A table of a case; a data_parallel one has no hot rows, and is not in the profile."""

    name: str
    rows: int
    dim: int
    pooling: PoolingType
    features: tuple[str, ...]
    sharding: str
    hot: tuple[int, ...]

    @property
    def is_replicated(self) -> bool:
        return self.sharding == "data_parallel"


@dataclass(frozen=True)
class Case:
    """A model, how it is sharded and trained, and its batches.

    Attributes:
        sequences: whether lookups are not pooled.
        with_ids: whether rows come with the embeddings of sequences.
        kernel: of the tables; None for the sharder's first.
        data_type: of the tables.
        output_type: of the embeddings.
        processed: by what weights are learned: "" (they are given), "features" (a processor for
            each) or "collection" (one for all).
        weight_type: of given weights; integers come where there should be none.
        unused: how many outputs of sequences, the last ones, are in no loss.
    """

    seed: int
    world_size: int
    tables: tuple[Table, ...]
    optimizer: str
    weighted: bool
    pipelined: bool
    kinds: tuple[str, ...]
    inputs: int
    mode: str = "overlay"
    learning_rate: float = 0.1
    weight_decay: float = 0.0
    sequences: bool = False
    with_ids: bool = False
    device: str = "cpu"
    kernel: str | None = None
    data_type: DataType = DataType.FP32
    output_type: DataType = DataType.FP32
    processed: str = ""
    weight_type: torch.dtype = torch.float32
    unused: int = 0

    @property
    def tolerance(self) -> float:
        """Of 1, or of the value: what another order of sums explains."""
        return max(TOLERANCES[self.data_type], TOLERANCES[self.output_type])


def profile_of(case: Case) -> FAEProfile:
    """The case's hot rows."""
    return FAEProfile(
        tuple(
            TableProfile(
                name=t.name,
                row_count=t.rows,
                dim=t.dim,
                features=t.features,
                hot_ids=np.array(t.hot, dtype=np.int64),
                row_bytes=t.dim * 4,
                is_sequence=case.sequences,
                is_positional=bool(case.processed),
            )
            for t in case.tables
            if not t.is_replicated
        ),
        budget_bytes=1 << 20,
    )


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


@dataclass
class Batch(Pipelineable):
    """What a loader yields."""

    kjt: KeyedJaggedTensor

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        return Batch(self.kjt.to(device, non_blocking))

    def record_stream(self, stream: torch.Stream) -> None:
        self.kjt.record_stream(stream)

    def pin_memory(self) -> Batch:
        return Batch(self.kjt.pin_memory())


def batches(case: Case, rank: int) -> list[tuple[str, KeyedJaggedTensor]]:
    """This rank's batches, whole."""
    rng = np.random.default_rng([case.seed, 7, rank])
    is_odd = not case.weight_type.is_floating_point
    gives = (case.weighted and not case.processed) or is_odd
    result = []
    for kind in case.kinds:
        keys: list[str] = []
        lengths, values, weights = [], [], []
        for table in case.tables:
            hot = np.array(table.hot, dtype=np.int64)
            cold = np.setdiff1d(np.arange(table.rows), hot)
            among = {"pure": hot, "cold": cold}.get(kind, np.arange(table.rows))
            if table.is_replicated:
                among = np.arange(table.rows)
            for feature in table.features:
                if feature in keys:
                    continue
                keys.append(feature)
                count = rng.integers(0, MOST_LOOKUPS + 1, size=case.inputs) * (len(among) > 0)
                if kind == "lone" and rank:  # no lookup but on one rank
                    count *= 0
                lengths.append(count)
                values.append(rng.choice(among, size=count.sum()) if count.sum() else [])
                weights.append(rng.uniform(0.5, 4.0 if is_odd else 2.0, size=count.sum()))
        kjt = KeyedJaggedTensor(
            keys=keys,
            values=torch.tensor(np.concatenate(values), dtype=torch.int64),
            lengths=torch.tensor(np.concatenate(lengths), dtype=torch.int32),
            weights=torch.tensor(np.concatenate(weights)).to(case.weight_type) if gives else None,
        )
        result.append((kind, kjt))
    return result


def remark(kjt: KeyedJaggedTensor, mark: SplitMark) -> KeyedJaggedTensor:
    """The same split batch under another mark; tensors are shared."""
    return KeyedJaggedTensor(
        keys=mark.keys(),
        values=kjt.values(),
        weights=kjt.weights_or_none(),
        lengths=kjt.lengths(),
        stride=kjt.stride(),
        length_per_key=kjt.length_per_key(),
        offset_per_key=kjt.offset_per_key(),
    )


def packed(kind: str, kjt: KeyedJaggedTensor, slots: SlotMap) -> KeyedJaggedTensor:
    """The batch as `pack` would give it."""
    if kind == "plain":
        return kjt
    apart = split(kjt, slots)
    mark = read_mark(apart)
    assert mark is not None
    if kind == "pure":
        return remark(apart, mark._replace(pure=True))
    return kjt if slots.keeps_order else apart


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
