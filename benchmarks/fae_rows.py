"""What moving hot rows costs: from their tables to the device, and back; for `fae_cpu.py`."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from trainobs.fae import FAEEmbeddingBagCollectionSharder, FAEProfile


def measure_rows(
    tables: list[EmbeddingBagConfig], profile: FAEProfile, rounds: int
) -> dict[str, Any]:
    """Rows a second, in turn: read, written, and written one by one as FAE's artifact does.

    Args:
        tables: of the model.
        profile: its hot rows.
        rounds: of each.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{Path(folder) / 'store'}"
        dist.init_process_group("gloo", store, rank=0, world_size=1)
        try:
            return _measure(_sharded(tables, profile), profile, rounds)
        finally:
            dist.destroy_process_group()


def _sharded(tables: list[EmbeddingBagConfig], profile: FAEProfile) -> Any:
    model = nn.Module()
    model.ebc = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    apply_optimizer_in_backward(RowWiseAdagrad, model.ebc.parameters(), {"lr": 0.1})
    sharder = FAEEmbeddingBagCollectionSharder(profile)
    plan = construct_module_sharding_plan(
        model.ebc,
        {table.name: table_wise(rank=0) for table in tables},
        sharder=sharder,
        local_size=1,
        world_size=1,
        device_type="cpu",
    )
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=ShardingPlan({"ebc": plan}), sharders=[sharder]
    )
    return sharded.module.ebc


def _measure(collection: Any, profile: FAEProfile, rounds: int) -> dict[str, Any]:
    write_back = collection._overlay.rows.write_back
    rows = sum(len(table.hot_ids) for table in profile.tables)
    largest = max(profile.tables, key=lambda table: len(table.hot_ids))
    sample = min(2_000, len(largest.hot_ids))
    weight = collection.state_dict()[f"embedding_bags.{largest.name}.weight"]
    table = weight.local_shards()[0].tensor
    hot = torch.zeros(sample, table.shape[1])

    def one_by_one() -> None:
        for slot in range(sample):
            table[int(largest.hot_ids[slot])] = hot[slot]

    runs: dict[str, tuple[Callable[[], None], int]] = {
        "pull": (lambda: write_back.pull(None), rows),
        "flush": (write_back.flush, rows),
        "one_by_one": (one_by_one, sample),
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, (run, count) in runs.items():
            begin = time.perf_counter()
            run()
            rates[name].append(count / (time.perf_counter() - begin))
    found = {f"{name}_rows_per_second": round(statistics.median(r)) for name, r in rates.items()}
    return {"hot_rows": rows, "hot_bytes": profile.hot_bytes, "rounds": rounds} | found
