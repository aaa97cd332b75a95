"""Cases: a model, how it is sharded and trained, and its batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torchrec.modules.embedding_configs import DataType, PoolingType
from torchrec.optim.optimizers import PartialRowWiseAdam
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from trainobs.fae import FAEProfile, TableProfile

OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "rowwise_adagrad": RowWiseAdagrad,
    "adam": torch.optim.Adam,
    "partial_rowwise_adam": PartialRowWiseAdam,
}
TOLERANCES = {DataType.FP32: 4e-6, DataType.FP16: 4e-3, DataType.BF16: 3e-2}


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
