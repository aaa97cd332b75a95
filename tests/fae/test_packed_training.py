"""From a loader to weights: as without `pack` and the sharder, and after an interruption."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from tests.fae.packing import KEYS, Input, Inputs, collate, profile
from trainobs.fae import pack
from trainobs.fae.kjt.split import read_mark
from trainobs.fae.sharding.sharder import FAEEmbeddingBagCollectionSharder

OF = profile(0.9)
SERVED = [KEYS.index(name) for table in OF.tables for name in table.features]


@dataclass
class Batch(Pipelineable):
    """Lookups and labels, for the pipeline."""

    kjt: KeyedJaggedTensor
    labels: Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        return Batch(self.kjt.to(device, non_blocking), self.labels.to(device))

    def record_stream(self, stream: torch.Stream) -> None:
        self.kjt.record_stream(stream)

    def pin_memory(self) -> Batch:
        return self


def collate_kjt(inputs: list[Input]) -> Batch:
    batch = collate(inputs)
    kjt = batch.sparse_features.permute(sorted(SERVED))
    return Batch(
        KeyedJaggedTensor(kjt.keys(), kjt.values(), lengths=kjt.lengths()), batch.labels.float()
    )


def loader(workers: int = 0) -> DataLoader[Any]:
    return DataLoader(Inputs(96), 4, shuffle=True, collate_fn=collate_kjt, num_workers=workers)


class Model(nn.Module):
    """A collection and a layer over it."""

    def __init__(self) -> None:
        super().__init__()
        self.ebc = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=table.name,
                    num_embeddings=table.row_count,
                    embedding_dim=table.dim,
                    feature_names=list(table.features),
                )
                for table in OF.tables
            ]
        )
        self.over = nn.Linear(12, 1)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        output = self.over(self.ebc(batch.kjt).values()).squeeze(1)
        return (output - batch.labels / 50).pow(2).mean(), output.detach()


def build(sharder: Any) -> tuple[DistributedModelParallel, torch.optim.Optimizer]:
    torch.manual_seed(4)
    model = Model()
    apply_optimizer_in_backward(RowWiseAdagrad, model.ebc.parameters(), {"lr": 0.1, "eps": 0.01})
    ways = {"t0": row_wise(), "t1": table_wise(rank=0)}
    plan = construct_module_sharding_plan(
        model.ebc,
        ways,
        sharder=FAEEmbeddingBagCollectionSharder(OF),
        local_size=1,
        world_size=1,
        device_type="cpu",
    )
    start = {name: value.clone() for name, value in model.state_dict().items()}
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=ShardingPlan({"ebc": plan}), sharders=[sharder]
    )
    sharded.load_state_dict(start)
    over = [p for name, p in sharded.named_parameters() if name.startswith("over")]
    return sharded, torch.optim.SGD(over, lr=0.05)


def everything(model: DistributedModelParallel) -> dict[str, Tensor]:
    def local(value: Any) -> Tensor:
        if hasattr(value, "local_shards"):
            return torch.cat([shard.tensor.flatten() for shard in value.local_shards()]).clone()
        return value.detach().clone()

    found = {name: local(value) for name, value in model.state_dict().items()}
    for name, states in model.fused_optimizer.state_dict()["state"].items():
        found |= {f"{name} {key}": local(value) for key, value in states.items()}
    return found


def whole(batch: Batch) -> Batch:
    """The batch as it was before it was split."""
    mark = read_mark(batch.kjt)
    bags = {key: jagged.to_dense() for key, jagged in batch.kjt.to_dict().items()}
    hot_keys = dict(zip(mark.hot_features, mark.keys()[len(mark.features) :], strict=True))
    hot = {name: torch.from_numpy(t.hot_ids) for t in OF.tables for name in t.features}
    rows = [
        torch.cat([bags[key][i], hot[key][bags[hot_keys[key]][i]]])
        for key in mark.features
        for i in range(batch.kjt.stride())
    ]
    lengths = torch.tensor([len(bag) for bag in rows], dtype=torch.int32)
    return Batch(
        KeyedJaggedTensor(list(mark.features), torch.cat(rows), lengths=lengths), batch.labels
    )


@pytest.mark.usefixtures("lone_rank")
def test_packed_training_is_training_on_the_same_batches():
    batches = list(pack(loader(), OF, window=6))
    pure = sum(read_mark(batch.kjt).pure for batch in batches)
    assert 4 < pure < len(batches) == 24
    results = []
    for sharder, feed in (
        (FAEEmbeddingBagCollectionSharder(OF), batches),
        (EmbeddingBagCollectionSharder(), list(map(whole, batches))),
    ):
        model, optimizer = build(sharder)
        losses = []
        for batch in feed:
            optimizer.zero_grad()
            loss, _ = model(batch)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        results.append({**everything(model), "losses": torch.tensor(losses)})
    ours, stock = results
    assert list(ours) == list(stock)
    assert float(ours["losses"][0]) != float(ours["losses"][-1])
    for name, value in ours.items():
        torch.testing.assert_close(value, stock[name], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.usefixtures("lone_rank")
def test_a_pipelined_training_goes_on_bit_equal():
    def run(steps: int, state: Any = None) -> tuple[dict[str, Tensor], Any]:
        model, optimizer = build(FAEEmbeddingBagCollectionSharder(OF))
        packed = pack(loader(), OF, window=6)
        if state is not None:
            saved = torch.load(io.BytesIO(state), weights_only=False)
            packed.load_state_dict(saved["packed"])
            model.load_state_dict(saved["model"])
            model.fused_optimizer.load_state_dict(saved["fused"])
        pipeline = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"))
        batches = iter(packed)
        for _ in range(steps):
            pipeline.progress(batches)
        file = io.BytesIO()
        state = {"model": model.state_dict(), "fused": model.fused_optimizer.state_dict()}
        if steps < 24:
            state["packed"] = packed.state_dict(ahead=2)
        torch.save(state, file)
        return everything(model), file.getvalue()

    expected, _ = run(20)
    for stop in (3, 11):
        _, state = run(stop)
        found, _ = run(20 - stop, state)
        for name, value in expected.items():
            assert torch.equal(found[name], value), name
