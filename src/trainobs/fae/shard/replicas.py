"""Hot rows that every rank has: lookups without a collective, one exchange in the backward."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.distributed.comm_ops import get_gradient_division

from trainobs.core.errors import FAEError
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.shard.agreement import Point, RankAgreement, all_gather
from trainobs.fae.shard.batch import SplitBatch
from trainobs.fae.shard.hot_store import HotLookups, HotStore
from trainobs.fae.shard.write_back import BackingShard, WriteBack, links, rate_of


class UniqueRows:
    """The rows that a rank looked up in one batch, each once.

    Made without waiting for the device: how many there are is copied to the host meanwhile.

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

    def reduce(self, lookups: HotLookups, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Sum the gradients of each row's lookups.

        Args:
            lookups: of the batch.
            gradients: float32[bags, width].

        Returns:
            int64[rows], and float32[rows, width].
        """
        each = gradients.index_select(0, lookups.bags())
        if lookups.weights is not None:
            each = each * lookups.weights.unsqueeze(1)
        sums = gradients.new_zeros(self.count, gradients.shape[1])
        return self._rows[: self.count], sums.index_add_(0, self._number, each)


class Replicas:
    """Hot rows of which every rank has a replica, all equal bit for bit.

    In the backward each rank sums the gradients of each row that it looked up, the ranks exchange
    rows and sums, and all train the same rows with the same numbers in the same order. A row comes
    at most once a rank, so no kernel has to add up long runs in an order of its own.

    Args:
        store: this rank's replica.
        shards: what this rank has of the tables.
        profile: which rows are hot.
        group: the ranks; None for a single one.
        agreement: where they meet.
    """

    def __init__(
        self,
        store: HotStore,
        shards: list[BackingShard],
        profile: FAEProfile,
        group: dist.ProcessGroup | None,
        agreement: RankAgreement | None,
    ) -> None:
        self._store = store
        self._shards = shards
        self._group = group
        self._agreement = agreement
        replicated = [tensor for kernel in store.kernels for tensor in kernel.tensors]
        self.write_back = WriteBack(list(links(store, shards, profile)), shards, replicated)

    def gather(self, batch: SplitBatch) -> list[HotLookups]:
        """The hot lookups of each kernel."""
        return self._store.gather(batch.hot, batch.hot_features)

    def lookup(self, lookups: list[HotLookups], batch_number: int, input_count: int) -> Tensor:
        """See `HotRows`."""
        if self._group is None:
            for kernel, rate in zip(self._store.kernels, self._learning_rates(), strict=True):
                kernel.learning_rate = rate
            return self._store.assemble(list(self.find(lookups)), lookups, input_count)
        anchor = torch.empty(0, requires_grad=True)
        unique = [UniqueRows(k.rows) for k in lookups] if torch.is_grad_enabled() else []
        step = (self, lookups, unique, batch_number)
        found = _ReplicatedLookup.apply(anchor, step)  # type: ignore[no-untyped-call]
        return self._store.assemble(list(found), lookups, input_count)

    def find(self, lookups: list[HotLookups]) -> tuple[Tensor, ...]:
        """What each kernel on this rank has for these lookups."""
        return tuple(
            kernel.lookup(asked) for kernel, asked in zip(self._store.kernels, lookups, strict=True)
        )

    def train(
        self,
        lookups: list[HotLookups],
        unique: list[UniqueRows],
        batch_number: int,
        gradients: tuple[Tensor, ...],
    ) -> None:
        """Train the rows that any rank looked up; a meeting of all ranks.

        Args:
            lookups: of each kernel, in this rank's batch.
            unique: rows of these.
            batch_number: how many batches came before.
            gradients: of each kernel's output on this rank.

        Raises:
            FAEError: ranks are at different points, or have different learning rates.
        """
        assert self._agreement is not None
        counts = [rows.count for rows in unique]
        numbers = [*counts, *self._learning_rates()]
        said = self._agreement.meet(Point.BACKWARD, batch_number, numbers)
        kernel_count = len(counts)
        for i, kernel in enumerate(self._store.kernels):
            kernel.learning_rate = _one_rate(said[:, kernel_count + i])
            width = kernel.layout.width
            shape = (len(gradients[i]), kernel.block_count, width)
            bags = gradients[i].view(shape).transpose(0, 1)
            scaled = bags.reshape(-1, width).float()
            if get_gradient_division():
                scaled = scaled / len(said)
            rows, sums = unique[i].reduce(lookups[i], scaled)
            with self._agreement.stopwatch:
                rows, sums = self._exchange(rows, sums, said[:, i].long().tolist())
            if len(rows):
                kernel.update(rows, sums)

    def _learning_rates(self) -> list[float]:
        """Of each kernel; NaN where this rank does not know."""
        return [
            rate_of({slab.table for slab in kernel.layout.slabs}, self._shards)
            for kernel in self._store.kernels
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
