"""One rank of a job of two that shards every way; `python -m tests.embeddings.ranks RANK STORE`.

Each case trains a few steps, eagerly or with TorchRec's pipeline, in both ranks or in one alone,
and compares what was counted with a count by hand. Ends with an error at the first difference.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchrec import (
        EmbeddingBagCollection,
        EmbeddingBagConfig,
        EmbeddingCollection,
        EmbeddingConfig,
        KeyedJaggedTensor,
    )
    from torchrec.distributed import DistributedModelParallel, ShardingEnv
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
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
    from torchrec.distributed.types import ShardingPlan, ShardingType
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
    from torchrec.streamable import Pipelineable

from tests.embeddings.brute import Expected, Steps, compare, jagged_bags, random_lengths
from trainobs.embeddings.model_lookups import ModelLookups

TABLES = {"t0": (37, ["a"]), "t1": (20, ["b", "c"]), "t2": (11, ["d"])}
KEYS = ["c", "a", "d", "b"]
DIM = 8
STEPS = 6
EVERYTHING = [one.value for one in ShardingType]


class BagSharder(EmbeddingBagCollectionSharder):
    """With the types that run on a CPU, but are not on TorchRec's list for it."""

    def sharding_types(self, compute_device_type):
        return EVERYTHING


class SequenceSharder(EmbeddingCollectionSharder):
    def sharding_types(self, compute_device_type):
        return EVERYTHING


@dataclass
class Batch(Pipelineable):
    kjt: KeyedJaggedTensor

    def to(self, device, non_blocking=False):
        return Batch(self.kjt.to(device, non_blocking=non_blocking))

    def record_stream(self, stream):
        self.kjt.record_stream(stream)

    def pin_memory(self):
        return Batch(self.kjt.pin_memory())


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=name, num_embeddings=rows, embedding_dim=DIM, feature_names=features
                )
                for name, (rows, features) in TABLES.items()
            ]
        )
        self.over = nn.Linear(DIM * len(KEYS), 1)

    def forward(self, batch):
        output = self.over(self.tables(batch.kjt).values()).mean()
        return output, output.detach()


class Sequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = EmbeddingCollection(
            tables=[
                EmbeddingConfig(
                    name=name, num_embeddings=rows, embedding_dim=DIM, feature_names=features
                )
                for name, (rows, features) in TABLES.items()
            ]
        )
        self.over = nn.Linear(DIM, 1)

    def forward(self, batch):
        output = self.tables(batch.kjt)
        embeddings = torch.cat([output[key].values() for key in KEYS])
        loss = self.over(embeddings).sum()
        return loss, loss.detach()


def sharding(name, world_size):
    last = world_size - 1
    return {
        "table_wise": lambda: table_wise(rank=last),
        "row_wise": row_wise,
        "column_wise": lambda: column_wise(ranks=[0, last]),
        "table_row_wise": lambda: table_row_wise(host_index=0),
        "grid_shard": lambda: grid_shard(host_indexes=[0]),
        "data_parallel": data_parallel,
    }[name]()


CASES = [
    (Bags, ["table_wise"] * 3),
    (Bags, ["row_wise"] * 3),
    (Bags, ["column_wise"] * 3),
    (Bags, ["table_row_wise"] * 3),
    (Bags, ["grid_shard"] * 3),
    (Bags, ["data_parallel"] * 3),
    (Bags, ["row_wise", "column_wise", "table_wise"]),
    (Sequences, ["table_wise"] * 3),
    (Sequences, ["row_wise"] * 3),
    (Sequences, ["column_wise"] * 3),
]


def make_batch():
    rows = {feature: n for n, features in TABLES.values() for feature in features}
    stride = 4
    lengths = {key: random_lengths(stride) for key in KEYS}
    return Batch(
        KeyedJaggedTensor(
            keys=KEYS,
            values=torch.cat([torch.randint(0, rows[k], (int(lengths[k].sum()),)) for k in KEYS]),
            lengths=torch.cat([lengths[k] for k in KEYS]),
        )
    )


def shard(model_class, types, group):
    """A model of this class, its tables sharded, trained by SGD in backward."""
    torch.manual_seed(1)
    model = model_class()
    if "data_parallel" not in types:  # TorchRec would leave those untrained, and not say so
        apply_optimizer_in_backward(torch.optim.SGD, model.tables.parameters(), {"lr": 0.1})
    sharder = BagSharder() if model_class is Bags else SequenceSharder()
    world_size = dist.get_world_size(group)
    plan = construct_module_sharding_plan(
        model.tables,
        {name: sharding(one, world_size) for name, one in zip(TABLES, types, strict=True)},
        sharder=sharder,
        local_size=world_size,
        world_size=world_size,
        device_type="cpu",
    )
    return DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(group),
        device=torch.device("cpu"),
        plan=ShardingPlan(plan={"tables": plan}),
        sharders=[sharder],
    )


def local_bytes(model, types, ids):
    """Bytes of these lookups, by table, that this rank has: as its own shards say."""
    held = {}
    for name, kind in zip(TABLES, types, strict=True):
        if kind == "data_parallel":
            held[name] = len(ids[name]) * DIM * 4
            continue
        key = next(key for key in model.state_dict() if key.endswith(f".{name}.weight"))
        held[name] = 0
        for shard in model.state_dict()[key].local_shards():
            first, (rows, columns) = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes
            held[name] += sum(first <= row < first + rows for row in ids[name]) * columns * 4
    return held


def train(model, batches, steps, pipelined):
    optimizer = torch.optim.SGD(model.module.over.parameters(), lr=0.1)
    if pipelined:
        pipeline = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"))
        iterator = iter(batches)
        for _ in batches:
            steps.begin()
            pipeline.progress(iterator)
        return
    for batch in batches:
        steps.begin()
        optimizer.zero_grad()
        model(batch)[0].backward()
        optimizer.step()


def run(model_class, types, group, pipelined, seed):
    model = shard(model_class, types, group)
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    torch.manual_seed(seed * 2 + dist.get_rank())
    batches = [make_batch() for _ in range(STEPS)]
    steps, expected = Steps(), {}
    lookups = ModelLookups(model, lambda: steps.serial, every=1, rank=rank, world_size=world_size)
    train(model, batches, steps, pipelined)
    rows = lookups.rows(steps.closed())
    lookups.close()
    for step, batch in enumerate(batches):
        bags = jagged_bags(batch.kjt)
        for name, (_, features) in TABLES.items():
            for feature in features:
                expected.setdefault((step, name), Expected()).add(bags[feature])
    compare(lookups, rows, expected)
    assert [table.module for table in lookups.tables] == ["tables"] * 3
    assert all(table.placement.startswith("host ") for table in lookups.tables)
    for row in rows:
        name = lookups.tables[row["table"]].name
        kind = types[row["table"]]
        here = local_bytes(model, types, {n: expected[int(row["step"]), n].ids for n in TABLES})
        assert row["host_bytes"] == here[name]
        assert row["remote_bytes"] == row["bytes"] - here[name]
        dense = kind == "data_parallel"
        assert row["gradient_rows"] == (TABLES[name][0] if dense else row["unique_rows"])
    return rows["remote_bytes"].sum()


def main(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{store}")
    alone = dist.new_group([0])  # shards name global ranks, so only this one can be alone
    groups = {"both": dist.group.WORLD, **({"alone": alone} if rank == 0 else {})}
    for where, group in groups.items():
        for seed, (model_class, types) in enumerate(CASES):
            if where == "alone" and {"table_row_wise", "grid_shard"} & set(types):
                continue  # TorchRec makes groups of ranks for these, which takes all ranks
            for pipelined in (False, True):
                remote_bytes = run(model_class, types, group, pipelined, seed)
                spread = where == "both" and {"row_wise", "column_wise"} & set(types)
                assert remote_bytes > 0 or not spread
                assert remote_bytes == 0 or where == "both"
                print("ok", model_class.__name__, *types, where, pipelined, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
