"""What is true of an embedding table for the whole run: where its rows are, what trains them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray

from trainobs.core.embedding_table import EmbeddingTable

MEMORIES = ("hbm", "host", "uvm", "uvm_caching")
"""Memories of this rank that rows are read from; what is elsewhere is remote."""

TIERS = (*MEMORIES, "remote")


class Gradient(Enum):
    """How the gradient of a table is kept."""

    DENSE = "dense"
    """A tensor as large as the table."""
    SPARSE = "sparse"
    """The rows that were looked up (`sparse=True`)."""
    FUSED = "fused"
    """None: backward updates the rows that were looked up (FBGEMM)."""


@dataclass(frozen=True)
class TablePart:
    """Some rows and columns of a table, and where they are.

    Attributes:
        rank: the rank that has them.
        memory: one of `MEMORIES`; another word for one that is not known.
        first_row: the first of its rows.
        end_row: the row after its last.
        row_bytes: bytes of its columns in one row.
    """

    rank: int
    memory: str
    first_row: int
    end_row: int
    row_bytes: float


@dataclass(frozen=True)
class Reads:
    """Bytes that a lookup reads, by tier.

    Attributes:
        starts: first rows of the ranges of rows between which these bytes differ, from 0.
        bytes: ranges x tiers.
    """

    starts: NDArray[np.int64]
    bytes: NDArray[np.float64]

    @property
    def uniform(self) -> bool:
        """Whether every row is read from the same places: then it takes no ids to know them."""
        return len(self.starts) == 1


def reads(parts: Sequence[TablePart], row_count: int, rank: int) -> Reads:
    """Where lookups of this rank read their bytes.

    Args:
        parts: all parts of a table; they cover it once.
        row_count: rows of the table.
        rank: this rank.
    """
    edges = sorted({0} | {part.first_row for part in parts if 0 <= part.first_row < row_count})
    cells = np.zeros((len(edges), len(TIERS)))
    for part in parts:
        held = [i for i, start in enumerate(edges) if part.first_row <= start < part.end_row]
        if part.rank != rank:
            cells[held, TIERS.index("remote")] += part.row_bytes
        elif part.memory in MEMORIES:
            cells[held, TIERS.index(part.memory)] += part.row_bytes
        else:
            cells[held, : len(MEMORIES)] = np.nan
    new = [0] + [
        i
        for i in range(1, len(edges))
        if not np.array_equal(cells[i], cells[i - 1], equal_nan=True)
    ]
    return Reads(np.array(edges, dtype=np.int64)[new], cells[new])


@dataclass
class WatchedTable:
    """An embedding table of the model.

    Attributes:
        info: what the run log says of it.
        reads: the memories that its lookups read from.
        gradient: how its gradient is kept.
        weight: its weights on this rank, where one tensor holds them: whether they train.
        untrained: an id whose row gets no gradient (`padding_idx`).
    """

    info: EmbeddingTable
    reads: Reads
    gradient: Gradient
    weight: torch.Tensor | None = field(default=None, repr=False)
    untrained: int | None = None

    @property
    def trains(self) -> bool:
        """Whether its weights get a gradient."""
        return self.weight is None or self.weight.requires_grad


def device_memory(device: torch.device) -> str:
    """Memory of what lies on a device."""
    return {"cpu": "host", "cuda": "hbm"}.get(device.type, device.type)
