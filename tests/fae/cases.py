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
BY_ROW = ("row_wise", "table_row_wise", "grid_shard")
TOLERANCES = {DataType.FP32: 4e-6, DataType.FP16: 4e-3, DataType.BF16: 3e-2}


@dataclass(frozen=True)
class Table:
    """A table of a case; a data_parallel one has no hot rows, and is not in the profile.

    Attributes:
        data_type: of its own, and not that of the case.
        optimizer: of its own, and not that of the case; "" for none.
    """

    name: str
    rows: int
    dim: int
    pooling: PoolingType
    features: tuple[str, ...]
    sharding: str
    hot: tuple[int, ...]
    data_type: DataType | None = None
    optimizer: str = ""

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
        least_weight: of those that are given and are no integers.
        unused: how many outputs of sequences, the last ones, are in no loss.
        max_gradient: to which the tables' optimizers clip gradients; 0 where they do not.
        clip: what clips the gradients of all other parameters: "" (nothing), a function of torch
            or TorchRec's optimizer, by "norm" or by "value".
        bounds: FBGEMM's mode for bad ids, which whole batches then have; "" for none of them.
        id_type: of lookups.
        length_type: of the lengths of bags.
        is_uneven: whether batches have different numbers of inputs, on other ranks too if TorchRec
            can have that.
        is_shared: whether the bags of plain batches are of several inputs (VBE).
        is_summed: whether two batches have one backward.
        is_divided: whether TorchRec divides gradients by the number of ranks.
        events: what comes between parts of the training, which are one more than these.
        part: which of them this case is.
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
    least_weight: float = 0.5
    unused: int = 0
    max_gradient: float = 0.0
    clip: str = ""
    bounds: str = ""
    id_type: torch.dtype = torch.int64
    length_type: torch.dtype = torch.int32
    is_uneven: bool = False
    is_shared: bool = False
    is_summed: bool = False
    is_divided: bool = True
    events: tuple[str, ...] = ()
    part: int = 0

    @property
    def tolerance(self) -> float:
        """Of 1, or of the value: what another order of sums explains."""
        types = [self.output_type, *map(self.type_of, self.tables)]
        return max(TOLERANCES[kind] for kind in types)

    @property
    def optimizers(self) -> set[str]:
        """Those of the tables."""
        return {self.optimizer_of(table) for table in self.tables}

    @property
    def ranks_differ(self) -> bool:
        """Whether ranks have other numbers of inputs.

        TorchRec cannot pool these row by row, and has no kernel on hosts for their float16 weights.
        """
        is_split = any(table.sharding in BY_ROW for table in self.tables)
        has_kernel = self.weight_type != torch.float16
        return self.is_uneven and has_kernel and (self.sequences or not is_split)

    def type_of(self, table: Table) -> DataType:
        """That of a table's rows."""
        return table.data_type or self.data_type

    def optimizer_of(self, table: Table) -> str:
        """That of a table."""
        return table.optimizer or self.optimizer


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
