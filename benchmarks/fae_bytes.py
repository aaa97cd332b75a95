"""Counts the bytes that a step's collectives send: TorchRec's sharder, and FAE's.

    python benchmarks/fae_bytes.py                # writes benchmarks/results/fae-bytes-DATE.json

Ranks are processes on this host, in a gloo group. What an operator of torch.distributed sends to
other ranks is counted by its arguments, and not on a network: an all-to-all sends what is split off
for the others, an all-gather a rank's part to each of them, a reduce-scatter one part to each of
them, an all-reduce twice as much. A model of pure steps, checked against the counts, goes on to 64
ranks.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (
    construct_module_sharding_plan,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.fae import FAEEmbeddingBagCollectionSharder, FAEProfile, TableProfile
from trainobs.fae.kjt.split import SlotMap, read_mark, split

ROWS = (200_000, 50_000, 20_000, 5_000, 1_000, 100, 20, 3)
WIDTH = 32
SLOPE = 1.05  # of the power law of lookups by rank, as of Criteo's larger columns
HOT_RATIO = 0.1  # of a table's rows, or all below 5,000
INPUTS = 1024  # of a rank's batch
COUNTED = (2, 4, 8)
MODELLED = (2, 4, 8, 16, 32, 64)
ARMS = ("table_wise", "row_wise", "overlay", "partitioned", "paper")
STEPS = {  # of which rows lookups are, and lookups in a bag
    "pure": ("hot", 1),
    "mixed": ("all", 1),
    "cold": ("cold", 1),
    "pure, 16 lookups a bag": ("hot", 16),
    "mixed, 16 lookups a bag": ("all", 16),
}


def hot_rows(rows: int) -> int:
    """Hot rows of a table: the first ones."""
    return rows if rows <= 5_000 else int(rows * HOT_RATIO)


def chances(rows: int, hot: int) -> NDArray[np.float64]:
    """How likely a lookup of a pure batch is to be of each hot row."""
    weights = np.arange(1, rows + 1, dtype=np.float64)[:hot] ** -SLOPE
    return np.asarray(weights / weights.sum())


class Sent(TorchDispatchMode):
    """Adds up the bytes that this rank sends to others, and counts collectives, by group."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: dict[str, int] = {}
        self.collectives: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == "c10d":
            self._count(func._schema.name.partition("::")[2], args)
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: tuple[Any, ...]) -> None:
        group = next(dist.ProcessGroup.unbox(a) for a in args if isinstance(a, torch.ScriptObject))
        ranks, rank = group.size(), group.rank()
        if name == "alltoall_base_":
            source, splits = args[1], args[4]
            rows = sum(splits[:rank]) + sum(splits[rank + 1 :]) if splits else 0
            of_row = _bytes(source) // max(1, len(source))
            sent = rows * of_row if splits else _bytes(source) * (ranks - 1) // ranks
        elif name in ("_allgather_base_", "allgather_"):
            sent = _bytes(args[1]) * (ranks - 1)
        elif name in ("_reduce_scatter_base_", "reduce_scatter_"):
            sent = _bytes(args[1]) * (ranks - 1) // ranks
        elif name == "allreduce_":
            sent = 2 * _bytes(args[0]) * (ranks - 1) // ranks
        elif name == "alltoall_":
            sent = _bytes(args[1]) - _bytes(args[1][rank])
        else:
            raise AssertionError(f"{name}: say what it sends")
        kind = "device" if group.group_name == dist.group.WORLD.group_name else "host"
        self.bytes[kind] = self.bytes.get(kind, 0) + sent
        self.collectives[kind] = self.collectives.get(kind, 0) + 1


def _bytes(part: Any) -> int:
    if isinstance(part, Tensor):
        return part.numel() * part.element_size()
    return sum(_bytes(inner) for inner in part)


def _tables() -> list[EmbeddingBagConfig]:
    return [
        EmbeddingBagConfig(
            name=f"t{i}", num_embeddings=rows, embedding_dim=WIDTH, feature_names=[f"f{i}"]
        )
        for i, rows in enumerate(ROWS)
    ]


def _profile() -> FAEProfile:
    tables = tuple(
        TableProfile(c.name, rows, WIDTH, (f"f{i}",), np.arange(hot_rows(rows)), WIDTH * 4 + 4)
        for i, (c, rows) in enumerate(zip(_tables(), ROWS, strict=True))
    )
    return FAEProfile(tables, budget_bytes=1 << 40)


def _batch(rng: np.random.Generator, step: str) -> KeyedJaggedTensor:
    """A batch of a kind of step."""
    of, lookups = STEPS[step]
    values, lengths = [], []
    for rows in ROWS:
        first = hot_rows(rows) if of == "cold" else 0
        among = hot_rows(rows) if of == "hot" else rows
        count = lookups if first < among else 0  # a table whose rows are all hot has no cold ones
        p = chances(rows, among)[first:]
        values.append(
            first + rng.choice(len(p), p=p / p.sum(), size=INPUTS * count) if count else []
        )
        lengths += [count] * INPUTS
    return KeyedJaggedTensor(
        keys=[f"f{i}" for i in range(len(ROWS))],
        values=torch.from_numpy(np.concatenate(values)).long(),
        lengths=torch.tensor(lengths, dtype=torch.int32),
    )


def _marked_pure(kjt: KeyedJaggedTensor) -> KeyedJaggedTensor:
    mark = read_mark(kjt)
    assert mark is not None
    return KeyedJaggedTensor(
        keys=mark._replace(pure=True).keys(),
        values=kjt.values(),
        lengths=kjt.lengths(),
        stride=kjt.stride(),
        length_per_key=kjt.length_per_key(),
        offset_per_key=kjt.offset_per_key(),
    )


def sharded(arm: str, ranks: int) -> nn.Module:
    collection = EmbeddingBagCollection(tables=_tables())
    apply_optimizer_in_backward(RowWiseAdagrad, collection.parameters(), {"lr": 0.1})
    is_stock = arm in ("table_wise", "row_wise")
    profile = _profile()
    named: Any = FAEEmbeddingBagCollectionSharder(profile)  # names all kinds of plans
    sharder: Any = EmbeddingBagCollectionSharder()
    if not is_stock:
        sharder = FAEEmbeddingBagCollectionSharder(profile, mode=arm)  # type: ignore[arg-type]
    kinds = {
        table.name: row_wise() if arm == "row_wise" else table_wise(rank=i % ranks)
        for i, table in enumerate(_tables())
    }
    plan = construct_module_sharding_plan(
        collection, kinds, sharder=named, local_size=ranks, world_size=ranks, device_type="cpu"
    )
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    module: nn.Module = sharder.shard(collection, plan, env, torch.device("cpu"))
    return module


def sent_in_step(model: nn.Module, arm: str, step: str, ranks: int, rank: int) -> Sent:
    """What this rank sends in a step of a model of `sharded`, after two others."""
    slots = SlotMap.from_profile(_profile())
    rng = np.random.default_rng([rank, ranks])
    for _ in range(3):
        kjt = _batch(rng, step)
        if arm not in ("table_wise", "row_wise"):
            kjt = split(kjt, slots)
            kjt = _marked_pure(kjt) if STEPS[step][0] == "hot" else kjt
        with Sent() as sent:
            model(kjt).values().sum().backward()
    return sent


def _serve(rank: int, ranks: int, store: str, results: Any) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(ranks),
    )
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    counts = {
        step: {arm: sent_in_step(sharded(arm, ranks), arm, step, ranks, rank).bytes for arm in ARMS}
        for step in STEPS
    }
    gathered: list[Any] = [None] * ranks
    dist.all_gather_object(gathered, counts)
    if rank == 0:
        results.put(gathered)
    dist.destroy_process_group()


@contextmanager
def _started(ranks: int) -> Iterator[Any]:
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        arguments = [(rank, ranks, store, results) for rank in range(ranks)]
        processes = [context.Process(target=_serve, args=a) for a in arguments]
        for process in processes:
            process.start()
        yield results
        for process in processes:
            process.join()


def count(ranks: int) -> dict[str, dict[str, dict[str, float]]]:
    """Bytes that a rank sends in a step on average, for each kind of step, arm and group."""
    with _started(ranks) as results:
        gathered = results.get()
    return {
        step: {
            arm: {
                kind: sum(of_rank[step][arm].get(kind, 0) for of_rank in gathered) / ranks
                for kind in ("device", "host")
            }
            for arm in ARMS
        }
        for step in STEPS
    }


def model(ranks: int) -> dict[str, float]:
    """The same of pure steps, as expected, without the sizes that are exchanged first.

    A stock table_wise step sends ids there, embeddings back and gradients there; an overlay sends
    the unique rows of a rank to the rank that adds them up, and those of all ranks to all.
    """
    share = (ranks - 1) / ranks
    stock = INPUTS * len(ROWS) * (2 * WIDTH * 4 + 8 + 4)  # int64 ids, int32 lengths
    rows = 0.0
    for table in ROWS:
        p = chances(table, hot_rows(table))
        for inputs in (INPUTS, INPUTS * ranks):
            rows += float((1 - (1 - p) ** inputs).sum())
    return {"table_wise": stock * share, "overlay": rows * (WIDTH + 1) * 4 * share}


def main(arguments: list[str] | None = None) -> None:
    """Count, model, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    date = datetime.datetime.now(datetime.UTC).date()
    default = Path(__file__).parent / "results" / f"fae-bytes-{date}.json"
    parser.add_argument("output", nargs="?", type=Path, default=default)
    parser.add_argument("--ranks", type=int, nargs="*", default=COUNTED)
    given = parser.parse_args(arguments)
    results = {
        "rows": ROWS,
        "width": WIDTH,
        "slope": SLOPE,
        "inputs_per_rank": INPUTS,
        "counted": {ranks: count(ranks) for ranks in given.ranks},
        "modelled": {ranks: model(ranks) for ranks in MODELLED},
    }
    given.output.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
