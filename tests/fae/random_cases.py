"""Models, plans, optimizers and batches that follow from a seed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import torch
from torchrec.modules.embedding_configs import DataType, PoolingType

from tests.fae.cases import BY_ROW, OPTIMIZERS, Case, Table

SEQUENCE_SHARDINGS = ("table_wise", "row_wise", "column_wise")
PROCESSORS = ("features", "collection")
SHARDINGS = (*SEQUENCE_SHARDINGS, "table_row_wise", "grid_shard")


def random_case(seed: int, world_size: int, sequences: bool = False) -> Case:
    """The case of a seed."""
    rng = np.random.default_rng(seed)
    weighted = bool(rng.random() < 0.3) and not sequences
    dims, shardings = ([8], SEQUENCE_SHARDINGS) if sequences else ([8, 16], SHARDINGS)
    tables, names = [], itertools.count()
    fewest = world_size * max(2, world_size - 1)  # FBGEMM has no tables without rows on a rank
    for i in range(rng.integers(1, 5)):
        rows = int(rng.integers(fewest, 40))
        sharding = str(rng.choice(shardings))
        if i and rng.random() < 0.15 and not sequences:
            sharding = "data_parallel"
        hot = tuple(np.flatnonzero(rng.random(rows) < rng.choice([0.0, 0.2, 0.6, 1.0])))
        tables.append(
            Table(
                name=f"t{i}",
                rows=rows,
                dim=int(rng.choice(dims)),
                pooling=_random_pooling(rng, sharding, weighted),
                features=tuple(f"f{next(names)}" for _ in range(rng.integers(1, 3))),
                sharding=sharding,
                hot=() if sharding == "data_parallel" else hot,
            )
        )
    pipelined = bool(rng.random() < 0.3)
    half = [rng.random() < 0.15 for _ in range(2)]
    half[1] &= world_size == 1  # a rank that has none of TorchRec's tables sends float32
    optimizer = str(rng.choice(list(OPTIMIZERS)))
    kinds = ["pure", "mixed", "plain", "cold", "lone"]
    case = Case(
        seed=seed,
        world_size=world_size,
        tables=tuple(tables),
        optimizer=optimizer,
        weighted=weighted,
        pipelined=pipelined,
        kinds=tuple(rng.choice(kinds, size=int(rng.integers(2, 7)))),
        inputs=int(rng.integers(1, 7)),
        mode=str(rng.choice(["overlay", "overlay", "paper", "partitioned"])),
        sequences=sequences,
        with_ids=bool(rng.random() < 0.5),
        weight_decay=0.05 if "adam" in optimizer and rng.random() < 0.5 else 0.0,
        data_type=DataType.FP16 if half[0] else DataType.FP32,
        output_type=DataType.FP16 if half[1] else DataType.FP32,
    )
    if weighted and rng.random() < 0.5:
        return with_processors(case, str(rng.choice(PROCESSORS)))
    more = np.random.default_rng([seed, 12])
    unused = int(sequences and len(tables) > 1 and more.random() < 0.3) * len(tables[-1].features)
    return replace(case, weight_type=_random_weight_type(case), unused=unused)


def with_processors(case: Case, kind: str) -> Case:
    """The same case with learned weights, and without means."""
    tables = tuple(replace(table, pooling=PoolingType.SUM) for table in case.tables)
    return replace(case, tables=tables, weighted=True, processed=kind)


def _random_weight_type(case: Case) -> torch.dtype:
    """A type of weights that the stock collection takes on hosts."""
    by_row = any(table.sharding in BY_ROW for table in case.tables)
    choices = [torch.float32]
    if case.weighted:
        if all(table.pooling is PoolingType.SUM for table in case.tables):
            choices.append(torch.float64)
        choices += [torch.float16] * (not by_row)
    elif case.world_size == 1 and [table.sharding for table in case.tables] == ["table_wise"]:
        choices += [torch.int64] * (not case.sequences)  # it cannot bring them in another order
    return choices[int(np.random.default_rng([case.seed, 11]).integers(len(choices)))]


def _random_pooling(rng: np.random.Generator, sharding: str, weighted: bool) -> PoolingType:
    """Means where the stock collection gets them right."""
    divided = sharding in ("row_wise", "table_row_wise")
    allowed = divided if weighted else sharding != "grid_shard"
    return PoolingType.MEAN if allowed and rng.random() < 0.5 else PoolingType.SUM
