"""What a case varies besides its model and kinds of batches, one function a dimension."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torchrec.modules.embedding_configs import DataType, PoolingType

from tests.fae.cases import BY_ROW, OPTIMIZERS, Case, Table
from tests.fae.course import EVENTS
from trainobs.fae.sharding.checks import DIVIDED_BY_COLLECTION

SHARE = 0.2  # of the cases has each dimension
Draw = np.random.Generator


def varied(case: Case) -> Case:
    """The case with some of the dimensions, by its seed."""
    for number, dimension in enumerate(DIMENSIONS):
        rng = np.random.default_rng([case.seed, 20, number])
        if rng.random() < SHARE:
            case = dimension(case, rng)
    return case


def clipped_tables(case: Case, rng: Draw) -> Case:
    """Gradients of the tables, by FBGEMM; of sums where FBGEMM would pool means."""
    tables = tuple(
        table
        if table.is_replicated or table.sharding in DIVIDED_BY_COLLECTION
        else replace(table, pooling=PoolingType.SUM)
        for table in case.tables
    )
    return replace(case, tables=tables, max_gradient=float(rng.choice([0.1, 0.02, 0.003])))


def clipped_layers(case: Case, rng: Draw) -> Case:
    """Gradients of all other parameters, by torch or by TorchRec's optimizer."""
    by = ["torchrec"] if case.pipelined else ["torch", "torchrec"]
    return replace(case, clip=f"{rng.choice(by)} {rng.choice(['norm', 'value'])}")


def types_of_tables(case: Case, rng: Draw) -> Case:
    """float32 and float16 in one collection."""
    kinds = [DataType.FP32, DataType.FP16]
    return replace(case, tables=_each(case, lambda t: replace(t, data_type=kinds[rng.integers(2)])))


def optimizers_of_tables(case: Case, rng: Draw) -> Case:
    """Each table by an optimizer of its own."""
    names = list(OPTIMIZERS)
    return replace(case, tables=_each(case, lambda t: replace(t, optimizer=str(rng.choice(names)))))


def bad_ids(case: Case, rng: Draw) -> Case:
    """Ids below and beyond the table, in batches that are not packed; none where they are fatal.

    Those of tables that share a feature and are split differently are refused.
    """
    mode = str(rng.choice(["WARNING", "IGNORE", "FATAL"], p=[0.4, 0.4, 0.2]))
    if case.world_size > 1 and case.mode != "paper" and not _are_split_alike(case):
        mode = "FATAL"
    return replace(case, bounds=mode)


def shared_bags(case: Case, rng: Draw) -> Case:
    """Bags of several inputs (VBE), in batches that are not packed."""
    return case if case.sequences or case.max_gradient else replace(case, is_shared=True)


def empty_batches(case: Case, rng: Draw) -> Case:
    """Batches without a lookup on any rank, pure ones too."""
    at = int(rng.integers(len(case.kinds) + 1))
    kind = str(rng.choice(["empty", "empty pure"]))
    return replace(case, kinds=(*case.kinds[:at], kind, *case.kinds[at:]))


def uneven_batches(case: Case, rng: Draw) -> Case:
    """Another number of inputs in each batch, and on each rank under plans that take it."""
    return replace(case, is_uneven=True)


def types_of_lookups(case: Case, rng: Draw) -> Case:
    """Ids and lengths of bags of 32 and 64 bits."""
    types = (torch.int32, torch.int64)
    return replace(case, id_type=types[rng.integers(2)], length_type=types[rng.integers(2)])


def negative_weights(case: Case, rng: Draw) -> Case:
    """Weights of both signs, of sums."""
    is_sum = all(table.pooling is PoolingType.SUM for table in case.tables)
    is_float = case.weight_type.is_floating_point
    return replace(case, least_weight=-2.0) if is_sum and is_float else case


def summed_losses(case: Case, rng: Draw) -> Case:
    """One backward of two batches, which the mode of the paper refuses if they differ in kind."""
    return replace(case, is_summed=not case.pipelined and case.mode != "paper")


def undivided_gradients(case: Case, rng: Draw) -> Case:
    """Gradients that TorchRec adds up over ranks, and does not average."""
    return replace(case, is_divided=False)


def events(case: Case, rng: Draw) -> Case:
    """What comes in mid-training (`EVENTS`).

    TorchRec's own forward over feature processors fails after a pipeline.
    """
    is_broken = case.pipelined and bool(case.processed)
    among = [event for event in EVENTS if event not in ("evaluate", "skip") or not is_broken]
    found = tuple(map(str, rng.choice(among, size=int(rng.integers(1, 4)))))
    while len(case.kinds) <= len(found):
        case = replace(case, kinds=case.kinds * 2)
    return replace(case, events=found)


def _are_split_alike(case: Case) -> bool:
    """Whether tables that share a feature are split by row, or none of them."""
    features = {feature for table in case.tables for feature in table.features}
    of_features = ([t for t in case.tables if f in t.features] for f in features)
    return all(len({t.sharding in BY_ROW for t in tables}) == 1 for tables in of_features)


def _each(case: Case, change: Callable[[Table], Table]) -> tuple[Table, ...]:
    """The tables, those that are split over ranks changed."""
    return tuple(table if table.is_replicated else change(table) for table in case.tables)


DIMENSIONS: tuple[Callable[[Case, Draw], Case], ...] = (
    clipped_tables,
    clipped_layers,
    types_of_tables,
    optimizers_of_tables,
    bad_ids,
    shared_bags,
    empty_batches,
    uneven_batches,
    types_of_lookups,
    negative_weights,
    summed_losses,
    undivided_gradients,
    events,
)
