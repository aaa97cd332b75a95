"""The batches of a case, whole and as `pack` would give them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from tests.fae.cases import BY_ROW, Case, Table
from tests.fae.processors import MOST_LOOKUPS
from trainobs.fae.kjt.split import SlotMap, SplitMark, read_mark, split

REPLACED = ("WARNING", "IGNORE")
"""Modes under which FBGEMM takes a row for an id that is in no table."""


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
    part = [case.part] * bool(case.part)
    rng = np.random.default_rng([case.seed, 7, rank, *part])
    sizes = np.random.default_rng([case.seed, 8, rank * case.ranks_differ, *part])
    result = []
    for kind in case.kinds:
        inputs = int(sizes.integers(1, 2 * case.inputs + 1)) if case.is_uneven else case.inputs
        result.append((kind, _batch(case, rank, kind, inputs, rng)))
    return result


def _batch(
    case: Case, rank: int, kind: str, inputs: int, rng: np.random.Generator
) -> KeyedJaggedTensor:
    is_odd = not case.weight_type.is_floating_point
    gives = (case.weighted and not case.processed) or is_odd
    is_none = kind.startswith("empty") or (kind == "lone" and rank)  # lookups on one rank alone
    is_shared = case.is_shared and kind == "plain"
    keys: list[str] = []
    lengths, values, weights, bags = [], [], [], []
    for table in case.tables:
        among = _rows(table, kind)
        for feature in table.features:
            if feature in keys:
                continue
            keys.append(feature)
            bags.append(int(rng.integers(1, inputs + 1)) if is_shared else inputs)
            count = rng.integers(0, MOST_LOOKUPS + 1, size=bags[-1]) * (len(among) > 0)
            if is_none:
                count *= 0
            ids = rng.choice(among, size=count.sum()) if count.sum() else np.zeros(0, np.int64)
            if case.bounds in REPLACED and kind == "plain" and not table.is_replicated:
                ids = np.where(rng.random(len(ids)) < 0.3, rng.choice(_bad(case, feature)), ids)
            lengths.append(count)
            values.append(ids)
            weights.append(rng.uniform(case.least_weight, 2.0 + 2.0 * is_odd, size=count.sum()))
    inverse = np.stack([rng.integers(0, count, size=inputs) for count in bags]) if is_shared else 0
    return KeyedJaggedTensor(
        keys=keys,
        values=torch.tensor(np.concatenate(values)).to(case.id_type),
        lengths=torch.tensor(np.concatenate(lengths)).to(case.length_type),
        weights=torch.tensor(np.concatenate(weights)).to(case.weight_type) if gives else None,
        stride_per_key_per_rank=[[count] for count in bags] if is_shared else None,
        inverse_indices=(keys, torch.tensor(inverse)) if is_shared else None,
    )


def _rows(table: Table, kind: str) -> NDArray[np.int64]:
    """Among which a kind of batch looks up."""
    hot = np.array(table.hot, dtype=np.int64)
    everything = np.arange(table.rows)
    if table.is_replicated:
        return everything
    return {"pure": hot, "cold": np.setdiff1d(everything, hot)}.get(kind, everything)


def _bad(case: Case, feature: str) -> list[int]:
    """Ids that are in no table of a feature."""
    tables = [table for table in case.tables if feature in table.features]
    rows = max(table.rows for table in tables)
    bad = [rows, rows + 1, rows + 2, 3 * rows, 2**31 - 1, -2, -3, -100]
    if case.world_size > 1 and all(table.sharding in BY_ROW for table in tables):
        bad.append(-1)  # in a table that is whole, FBGEMM takes it for a row that was pruned
    return bad


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
        return kjt  # as `pack` leaves those with bad ids
    apart = split(kjt, slots)
    mark = read_mark(apart)
    assert mark is not None
    if kind.endswith("pure"):
        return remark(apart, mark._replace(pure=True))
    return kjt if slots.keeps_order else apart
