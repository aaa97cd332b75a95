"""The batches of a case, whole and as `pack` would give them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from tests.fae.cases import Case
from tests.fae.processors import MOST_LOOKUPS
from trainobs.fae.kjt.split import SlotMap, SplitMark, read_mark, split


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
