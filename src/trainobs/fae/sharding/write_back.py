"""Copies hot rows from their tables and back: weights and optimizer state, all rows at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor

from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.hot_kernels import HotKernel, kernel_tensors
from trainobs.fae.sharding.torchrec_private import StockSequences, table_kernels, write_counts


class BackingShard(NamedTuple):
    """What this rank holds of a table."""

    table: str
    row: int  # first of the table
    column: int  # first of the table
    tensors: list[Tensor]  # weights [rows, columns], then each state of the optimizer
    kernel: SplitTableBatchedEmbeddingBagsCodegen  # which trains it


def backing_shards(stock: StockSequences) -> list[BackingShard]:
    """The shards on this rank of a collection's tables; the tensors are views."""
    shards = []
    for kernel, tables in table_kernels(stock):
        for table, tensors in zip(tables, kernel_tensors(kernel), strict=True):
            row, column = table.local_metadata.shard_offsets
            shards.append(BackingShard(table.name, row, column, tensors, kernel))
    return shards


class TableWrites:
    """Sees what torch writes to the tables of a collection, by this rank's part of them.

    Tables without hot rows count too, and the empty parameters of tables that other ranks have:
    code that writes to all parameters on all ranks is then seen by all of them.

    Args:
        stock: the collection.
        shards: what this rank has of its tables.
    """

    def __init__(self, stock: StockSequences, shards: Iterable[BackingShard]) -> None:
        found = [tensor for shard in shards for tensor in shard.tensors]
        found += [p for p in stock.module.parameters() if not p.numel()]
        places = {tensor.data_ptr() if tensor.numel() else id(tensor): tensor for tensor in found}
        self._tensors = list(places.values())
        self._counts: list[int] = write_counts(self._tensors)

    def are_new(self) -> bool:
        """Whether there were any since the last call."""
        before, self._counts = self._counts, write_counts(self._tensors)
        return before != self._counts


class Link(NamedTuple):
    """Rows that are among the hot ones and in a shard."""

    hot: list[Tensor]  # weights, then each state of the optimizer, on the device
    hot_rows: slice  # of these
    shard: BackingShard
    shard_rows: Tensor  # int64, as many

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Weights, and each state: the hot rows (a view), and the shard's tensor."""
        for mine, theirs in zip(self.hot, self.shard.tensors, strict=True):
            yield mine[self.hot_rows], theirs


class WriteBack:
    """Moves rows between the hot rows and this rank's shards of the tables.

    Args:
        links: of this rank.
        replicated: tensors that all ranks hold whole, and of which each reads a part.

    Attributes:
        is_of_all_ranks: whether a rank cannot `pull` alone.
    """

    def __init__(self, links: list[Link], replicated: list[Tensor]) -> None:
        self._links = links
        self._replicated = replicated
        self.is_of_all_ranks = bool(replicated)

    @torch.no_grad()
    def flush(self) -> None:
        """Write the hot rows to the tables, without a collective: every rank writes what it holds.

        They are written to `data`, which autograd does not count: a save may come between a forward
        and its backward, which does not read these rows, and it is no write of others.
        """
        for link in self._links:
            for hot, table in link.pairs():
                table.data.index_copy_(0, link.shard_rows.to(table.device), hot.to(table.device))

    @torch.no_grad()
    def pull(self, group: dist.ProcessGroup | None) -> None:
        """Read the hot rows from the tables.

        Args:
            group: the ranks, all of which come here; None for a single one.
        """
        replicated = [] if group is None else self._replicated
        for tensor in replicated:
            tensor.zero_()
        for link in self._links:
            for hot, table in link.pairs():
                hot.copy_(table.index_select(0, link.shard_rows.to(table.device)))
        for tensor in replicated:
            dist.all_reduce(tensor, group=group)  # zero but on one rank: the sum is exact


def replica_links(
    kernels: Iterable[HotKernel], shards: list[BackingShard], profile: FAEProfile
) -> Iterator[Link]:
    """Every slab with every shard that has some of its rows, which are in one order in both."""
    for kernel in kernels:
        for slab in kernel.layout.slabs:
            for shard in shards:
                if (shard.table, shard.column) != (slab.table, slab.column):
                    continue
                first, rows = rows_in(shard, profile)
                if len(rows):
                    start = slab.row + first
                    yield Link(kernel.tensors, slice(start, start + len(rows)), shard, rows)


def rows_in(shard: BackingShard, profile: FAEProfile) -> tuple[int, Tensor]:
    """The hot rows in a shard: slot of the first, and where they are in the shard."""
    hot_ids = profile.table(shard.table).hot_ids
    bounds = [shard.row, shard.row + len(shard.tensors[0])]
    first, last = np.searchsorted(hot_ids, bounds)
    return int(first), torch.from_numpy(hot_ids[first:last] - shard.row)
