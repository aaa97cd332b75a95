"""Hot rows that every rank has: lookups without a collective, one exchange in the backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.embedding_types import KJTList
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.barrier import RankBarrier, SyncPoint
from trainobs.fae.sharding.batch import Process, SplitBatch
from trainobs.fae.sharding.hot_kernels import HotKernel, assemble_bags, assemble_sequences
from trainobs.fae.sharding.layout import HotLayout, SlabRates
from trainobs.fae.sharding.rates import LookupCounts, TableRates, agreed, one_count, span
from trainobs.fae.sharding.unique_rows import UniqueRows, sum_over_ranks
from trainobs.fae.sharding.write_back import BackingShard, WriteBack, replica_links

KernelLookups = list[KeyedJaggedTensor]
"""Lookups of a batch in each kernel."""

_NUMBERS = 4
"""Of a kernel, to another rank: rows that are its own, rows in all, the least and largest rate."""


class _Step(NamedTuple):
    """What a backward needs to know of its forward."""

    replicas: Replicas
    lookups: KernelLookups
    unique: list[UniqueRows]  # rows of these
    rates: list[SlabRates]  # of each kernel
    lookup_count: float  # before this one
    batch_number: int


class Replicas:
    """Hot rows of which every rank has a replica, all equal bit for bit.

    In the backward each rank sums the gradients of each row that it looked up. The sums of a row go
    to one rank, which adds them up, and the totals to all. So all train the same rows with the same
    numbers in the same order, each once, at the rates that the forward had.

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
        joins_mixed: False, as every rank looks up its hot lookups; see `Partition`.
        own_bytes: None, as every rank has all hot rows; see `ServedCounts.use`.
    """

    own_bytes: int | None = None
    joins_mixed = False

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
        self._barrier = barrier
        self._group = group
        self.kernels = [HotKernel(kernel, device, pools) for kernel in layout.kernels]
        self._rates = TableRates(layout.kernels, shards)
        self._counts = LookupCounts(shards)
        replicated = [tensor for kernel in self.kernels for tensor in kernel.tensors]
        links = list(replica_links(self.kernels, shards, profile))
        self.write_back = WriteBack(links, replicated)

    def set_optimizer(self, settings: Mapping[str, float]) -> None:
        """Set what the optimizer was given in mid-training."""
        for kernel in self.kernels:
            kernel.set_optimizer(settings)

    def gather(self, batch: SplitBatch) -> KernelLookups:
        """The hot lookups of a batch, for each kernel."""
        return [kernel.gather(batch.hot, batch.hot_features) for kernel in self.kernels]

    def lookup(self, lookups: KernelLookups, batch_number: int, input_count: int) -> list[Tensor]:
        """The embeddings, in the order of the collection's output; the backward trains the rows.

        Args:
            lookups: as `gather` gave them.
            batch_number: how many batches came before.
            input_count: inputs of the batch.

        Returns:
            Of bags one float32[inputs, columns], the sums over the hot lookups of each; of
            sequences float32[lookups, columns] for each output.
        """
        rates, count = self._rates.now(), self._counts.now()
        if self._group is None and all(len(set(of_slabs)) < 2 for of_slabs in rates):
            for kernel, of_slabs in zip(self.kernels, rates, strict=True):
                kernel.train_at(of_slabs[0], count)
            found = self.find(lookups)
        else:
            anchor = torch.empty(0, requires_grad=True)
            unique = self._unique(lookups) if torch.is_grad_enabled() else []
            step = _Step(self, lookups, unique, rates, count, batch_number)
            weights = [of_kernel.weights_or_none() for of_kernel in lookups]
            found = _ReplicatedLookup.apply(anchor, step, *weights)  # type: ignore[no-untyped-call]
        if self._pools:
            return [assemble_bags(self._layout, found, input_count, self._device)]
        return assemble_sequences(self._layout, found, lookups, self._device)

    def processed(self, lookups: KernelLookups, process: Process) -> KernelLookups:
        """Lookups, as `gather` gave them, with the weights that a feature processor has."""
        return list(process(KJTList(lookups)))

    def find(self, lookups: KernelLookups) -> tuple[Tensor, ...]:
        """What each kernel on this rank has for these lookups."""
        return tuple(
            kernel.lookup(of_kernel)
            for kernel, of_kernel in zip(self.kernels, lookups, strict=True)
        )

    def train(self, step: _Step, gradients: tuple[Tensor | None, ...]) -> None:
        """Train the rows that any rank looked up; all ranks come here.

        Args:
            step: of this rank.
            gradients: of each kernel's output on this rank; None where it is in no loss, so that
                no row is trained.
        """
        pairs = list(zip(step.unique, gradients, strict=True))
        mine = [[0] * self._ranks if g is None else rows.counts for rows, g in pairs]
        rates, count, taken = step.rates, step.lookup_count, [[0]] * len(mine)
        if self._barrier is not None:
            rates, count, taken = self._agree(self._barrier, step, mine)
        for i, kernel in enumerate(self.kernels):
            unique, gradient = pairs[i]
            if gradient is None:
                rows = torch.zeros(0, dtype=torch.int64, device=self._device)
                sums = torch.zeros(0, kernel.layout.width, device=self._device)
            else:
                rows, sums = kernel.reduce(unique, step.lookups[i], gradient.float(), self._share)
            if self._group is not None and self._barrier is not None and taken[i]:
                with self._barrier.stopwatch:
                    size = kernel.layout.row_count
                    rows, sums = sum_over_ranks(rows, sums, mine[i], taken[i], size, self._group)
            kernel.train(rows, sums, rates[i], count)

    def weight_gradients(
        self, step: _Step, gradients: tuple[Tensor | None, ...]
    ) -> list[Tensor | None]:
        """Gradients of the weights of this rank's lookups, of each kernel, if they are learned."""
        return [
            kernel.weight_gradients(lookups, gradient.float(), self._share)
            if gradient is not None and _are_learned(lookups)
            else None
            for kernel, lookups, gradient in zip(self.kernels, step.lookups, gradients, strict=True)
        ]

    @property
    def _ranks(self) -> int:
        return 1 if self._group is None else dist.get_world_size(self._group)

    @property
    def _share(self) -> float:
        """By which TorchRec multiplies gradients between ranks."""
        return 1 / self._ranks if get_gradient_division() else 1.0

    def _unique(self, lookups: KernelLookups) -> list[UniqueRows]:
        return [
            UniqueRows(of_kernel.values(), kernel.layout.row_count, self._ranks)
            for kernel, of_kernel in zip(self.kernels, lookups, strict=True)
        ]

    def _agree(
        self, barrier: RankBarrier, step: _Step, mine: list[list[int]]
    ) -> tuple[list[SlabRates], float, list[list[int]]]:
        """Rates of each kernel's slabs, lookups, and how many rows each rank has for this one.

        The last is by kernel, and empty where no rank has any row.

        Args:
            barrier: of the ranks.
            step: of this rank.
            mine: this rank's `UniqueRows.counts`, of each kernel.
        """
        numbers = torch.empty(self._ranks, 1 + _NUMBERS * len(mine), dtype=torch.float64)
        numbers[:, 0] = step.lookup_count
        for i, (counts, slabs) in enumerate(zip(mine, step.rates, strict=True)):
            of_kernel = numbers[:, 1 + _NUMBERS * i :][:, :_NUMBERS]
            of_kernel[:, 0] = torch.tensor(counts)
            of_kernel[:, 1:] = torch.tensor([sum(counts), *span(slabs)])
        found = barrier.wait(SyncPoint.BACKWARD, step.batch_number, numbers)
        count = one_count(found[:, 0].tolist())
        taken, rates = [], []
        for of_kernel, slabs in zip(
            torch.split(found[:, 1:], _NUMBERS, dim=1), step.rates, strict=True
        ):
            taken.append(of_kernel[:, 0].int().tolist() if of_kernel[:, 1].any() else [])
            spans = of_kernel[:, 2:]
            known = set(spans[~spans.isnan()].tolist())
            if len(known) > 1:  # all ranks know that, and tell each other more
                given = torch.tensor(slabs, dtype=torch.float64)
                rates.append(agreed(barrier.wait(SyncPoint.BACKWARD, step.batch_number, given)))
            else:
                rates.append(list(known) * len(slabs))
        return rates, count, taken


class _ReplicatedLookup(torch.autograd.Function):
    """Lookups on this rank, training on all."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, step: _Step, *weights: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.step = step
        ctx.set_materialize_grads(False)  # what is in no loss is not trained
        return step.replicas.find(step.lookups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        of_weights = ctx.step.replicas.weight_gradients(ctx.step, gradients)
        ctx.step.replicas.train(ctx.step, gradients)
        return None, None, *of_weights


def _are_learned(lookups: KeyedJaggedTensor) -> bool:
    weights = lookups.weights_or_none()
    return weights is not None and weights.requires_grad
