"""Hot rows that every rank has: lookups without a collective, one exchange in the backward."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.core.errors import FAEError
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.barrier import Point, RankBarrier, all_gather
from trainobs.fae.sharding.batch import SplitBatch
from trainobs.fae.sharding.hot_kernels import HotKernel, assemble_bags, assemble_sequences
from trainobs.fae.sharding.layout import HotLayout
from trainobs.fae.sharding.write_back import BackingShard, WriteBack, rate_of, replica_links

KernelLookups = list[KeyedJaggedTensor]
"""Lookups of a batch in each kernel."""


class UniqueRows:
    """The rows that a rank looked up in one batch, each once.

    Made without waiting for the device; the number of rows is copied to the host meanwhile.

    Args:
        rows: int64[lookups], rows of a kernel.
    """

    def __init__(self, rows: Tensor) -> None:
        ordered, order = rows.sort(stable=True)
        is_first = torch.ones_like(ordered, dtype=torch.bool)
        torch.ne(ordered[1:], ordered[:-1], out=is_first[1:])
        number = torch.cumsum(is_first, 0) - 1
        self._rows = torch.zeros_like(rows).scatter_(0, number, ordered)
        self._number = torch.empty_like(number).scatter_(0, order, number)
        self._last = number[-1:].to("cpu", non_blocking=True)
        self._copied = torch.cuda.Event() if rows.is_cuda else None  # type: ignore[no-untyped-call]
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(rows.device))  # that of the copy

    @property
    def count(self) -> int:
        """How many rows there are."""
        if self._copied is not None:
            self._copied.synchronize()
        return int(self._last) + 1 if len(self._last) else 0

    def reduce(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Sum the gradients of each row's lookups.

        Args:
            gradients: float32[lookups, width].

        Returns:
            int64[rows], and float32[rows, width].
        """
        sums = gradients.new_zeros(self.count, gradients.shape[1])
        return self._rows[: self.count], sums.index_add_(0, self._number, gradients)


class Replicas:
    """Hot rows of which every rank has a replica, all equal bit for bit.

    In the backward each rank sums the gradients of each row that it looked up, the ranks exchange
    rows and sums, and all train the same rows with the same numbers in the same order. A row comes
    at most once a rank, so no kernel has to add up long runs in an order of its own.

    Args:
        layout: of this rank's replica.
        device: where the rows are to be.
        pools: whether lookups are pooled by bag.
        shards: what this rank has of the tables.
        profile: which rows are hot.
        barrier: of the ranks; None for a single one.
        group: the ranks; None for a single one.

    Attributes:
        kernels: with the rows.
        write_back: between the rows and this rank's shards.
    """

    def __init__(
        self,
        layout: HotLayout,
        device: torch.device,
        pools: bool,
        shards: list[BackingShard],
        profile: FAEProfile,
        barrier: RankBarrier | None,
        group: dist.ProcessGroup | None,
    ) -> None:
        self._layout = layout
        self._device = device
        self._pools = pools
        self._shards = shards
        self._barrier = barrier
        self._group = group
        self.kernels = [HotKernel(kernel, device, pools) for kernel in layout.kernels]
        replicated = [tensor for kernel in self.kernels for tensor in kernel.tensors]
        links = list(replica_links(self.kernels, shards, profile))
        self.write_back = WriteBack(links, replicated)

    def gather(self, batch: SplitBatch) -> KernelLookups:
        """The hot lookups of a batch, for each kernel."""
        return [kernel.gather(batch.hot, batch.hot_features) for kernel in self.kernels]

    def lookup(self, lookups: KernelLookups, batch_number: int, input_count: int) -> Tensor:
        """The embeddings, in the order of the collection's output; the backward trains the rows.

        Args:
            lookups: as `gather` gave them.
            batch_number: how many batches came before.
            input_count: inputs of the batch.

        Returns:
            float32[inputs, columns] of bags, the sums over the hot lookups of each;
            float32[lookups, columns] of sequences, output behind output.
        """
        if self._group is None:
            for kernel, rate in zip(self.kernels, self._learning_rates(), strict=True):
                kernel.set_learning_rate(rate)
            found = self.find(lookups)
        else:
            anchor = torch.empty(0, requires_grad=True)
            unique = [UniqueRows(k.values()) for k in lookups] if torch.is_grad_enabled() else []
            step = (self, lookups, unique, batch_number)
            found = _ReplicatedLookup.apply(anchor, step)  # type: ignore[no-untyped-call]
        if self._pools:
            return assemble_bags(self._layout, found, input_count, self._device)
        return assemble_sequences(self._layout, found, lookups, self._device)

    def find(self, lookups: KernelLookups) -> tuple[Tensor, ...]:
        """What each kernel on this rank has for these lookups."""
        return tuple(
            kernel.lookup(of_kernel)
            for kernel, of_kernel in zip(self.kernels, lookups, strict=True)
        )

    def train(
        self,
        lookups: KernelLookups,
        unique: list[UniqueRows],
        batch_number: int,
        gradients: tuple[Tensor, ...],
    ) -> None:
        """Train the rows that any rank looked up; all ranks come here.

        Args:
            lookups: of each kernel, in this rank's batch.
            unique: rows of these.
            batch_number: how many batches came before.
            gradients: of each kernel's output on this rank.
        """
        assert self._barrier is not None
        counts = [rows.count for rows in unique]
        numbers = [*counts, *self._learning_rates()]
        gathered = self._barrier.wait(Point.BACKWARD, batch_number, numbers)
        kernel_count = len(counts)
        for i, kernel in enumerate(self.kernels):
            kernel.set_learning_rate(_one_rate(gathered[:, kernel_count + i]))
            scaled = gradients[i].float()
            if get_gradient_division():
                scaled = scaled / len(gathered)
            rows, sums = unique[i].reduce(kernel.spread(lookups[i], scaled))
            with self._barrier.stopwatch:
                rows, sums = self._exchange(rows, sums, gathered[:, i].long().tolist())
            if len(rows):
                kernel.update(rows, sums)

    def _learning_rates(self) -> list[float]:
        """Of each kernel; NaN where this rank does not know."""
        return [
            rate_of({slab.table for slab in kernel.layout.slabs}, self._shards)
            for kernel in self.kernels
        ]

    def _exchange(self, rows: Tensor, sums: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        """Rows and sums of all ranks, in the order of ranks; one collective for both."""
        longest = max(counts)
        if not longest:
            return rows, sums
        mine = sums.new_empty(longest, 1 + sums.shape[1])
        mine[: len(rows), 0] = rows.int().view(torch.float32)  # the bits, not the number
        mine[: len(rows), 1:] = sums
        all_ranks = mine.new_empty(len(counts) * longest, mine.shape[1])
        all_gather(all_ranks, mine, self._group)
        parts = [
            part[:count]
            for part, count in zip(torch.split(all_ranks, longest), counts, strict=True)
        ]
        packed = torch.cat(parts)
        return packed[:, 0].contiguous().view(torch.int32).long(), packed[:, 1:].contiguous()


class _ReplicatedLookup(torch.autograd.Function):
    """Lookups on this rank, training on all."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, step: tuple[Any, ...]) -> tuple[Tensor, ...]:
        ctx.step = step
        replicas: Replicas = step[0]
        return replicas.find(step[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        replicas, lookups, unique, batch_number = ctx.step
        replicas.train(lookups, unique, batch_number, gradients)
        return None, None


def _one_rate(rates: Tensor) -> float:
    """The learning rate that the ranks which know it have."""
    known = rates[~rates.isnan()]
    if (known != known[0]).any():
        raise FAEError(
            "cannot train hot rows",
            f"learning rates {sorted(set(known.tolist()))} on different ranks",
            "set the learning rate of the fused optimizer to the same value on all ranks",
        )
    return float(known[0])
