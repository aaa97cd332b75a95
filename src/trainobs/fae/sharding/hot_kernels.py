"""Hot rows in FBGEMM kernels: lookups, and the optimizer that is fused into the backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor
from torchrec.modules.embedding_configs import data_type_to_sparse_type
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.fae.kjt.jagged import by_lookup, permuted, with_values
from trainobs.fae.sharding.layout import HotLayout, KernelLayout, SlabRates
from trainobs.fae.sharding.torchrec_private import (
    counts_lookups,
    set_lookup_count,
    without_clipping,
)
from trainobs.fae.sharding.unique_rows import UniqueRows

_RUN = 1 << 15  # lookups whose rows are read at once


class HotKernel:
    """One FBGEMM table that holds the hot rows of many.

    It is not an `nn.Module`, so that the model has no parameter or buffer of it.

    Args:
        layout: what lies where.
        device: where the rows are to be; they stay in its own memory.
        pools: whether lookups are pooled by bag; each block then gives columns.
    """

    def __init__(self, layout: KernelLayout, device: torch.device, pools: bool) -> None:
        self.layout = layout
        self._block_count = len(layout.features) if pools else 1
        self._pools = pools
        on_host = device.type == "cpu"
        row_count = max(1, layout.row_count)  # FBGEMM takes no empty table
        self._tables = SplitTableBatchedEmbeddingBagsCodegen(
            [
                (
                    row_count,
                    layout.width,
                    EmbeddingLocation.HOST if on_host else EmbeddingLocation.DEVICE,
                    ComputeDevice.CPU if on_host else ComputeDevice.CUDA,
                )
            ],
            feature_table_map=[0] * self._block_count,
            pooling_mode=PoolingMode.SUM,
            weights_precision=data_type_to_sparse_type(layout.data_type),
            output_dtype=SparseType.FP32,
            device=device,
            table_names=["hot rows"],
            **layout.settings,
        )
        self._is_shifted = any(layout.feature_rows)

    @property
    def tensors(self) -> list[Tensor]:
        """Weights [rows, width], then each state of the optimizer, [rows] or [rows, width]."""
        return kernel_tensors(self._tables)[0]

    def set_optimizer(self, settings: Mapping[str, float]) -> None:
        """Set what the fused optimizer was given in mid-training, by FBGEMM's names."""
        self._tables.update_hyper_parameters(dict(settings))

    def train_at(self, rate: float, count: float) -> None:
        """Set the learning rate of the fused optimizer, and after how many lookups it is.

        See `counts_lookups`.
        """
        self._tables.set_learning_rate(rate)
        if counts_lookups(self._tables):
            set_lookup_count(self._tables, int(count))

    def gather(self, hot: KeyedJaggedTensor, features: Sequence[str]) -> KeyedJaggedTensor:
        """The lookups of this kernel's features, as rows of it; a key for each block.

        Args:
            hot: lookups of hot rows as slots, all features of the batch.
            features: feature of each of its keys.
        """
        order = [features.index(feature) for feature in self.layout.features]
        if order != list(range(len(hot.keys()))):
            hot = permuted(hot, order)
        rows = hot.values().long()
        if self._is_shifted:
            rows = rows + by_lookup(hot, self.layout.feature_rows)[0]
        keys = self.layout.features if self._pools else None
        return with_values(hot, rows, keys, is_weighted=self._pools)

    def lookup(self, lookups: KeyedJaggedTensor) -> Tensor:
        """The embeddings; backward trains the rows.

        float32[inputs, blocks * width] of bags, their sums; float32[lookups, width] of sequences.
        """
        rows = lookups.values()
        offsets = torch.arange(len(rows) + 1, device=rows.device)  # of a sequence each is a bag
        if self._pools:
            offsets = lookups.offsets().long()
        found: Tensor = self._tables(rows, offsets, _factors(lookups))
        return found

    def reduce(
        self, unique: UniqueRows, lookups: KeyedJaggedTensor, gradients: Tensor, share: float
    ) -> tuple[Tensor, Tensor]:
        """Sum the gradients of each row, clipped as the fused optimizer does.

        See `UniqueRows.reduce`.

        Args:
            unique: rows of the lookups.
            lookups: of a batch.
            gradients: float32[inputs, blocks * width] or [lookups, width], of what `lookup` gave.
            share: by which they are multiplied, as TorchRec does between ranks.
        """
        by_bag, places = self._by_bag(lookups, gradients, share)
        found, sums = unique.reduce(by_bag, places, _factors(lookups))
        return found, sums if share == 1 else sums * share

    def weight_gradients(
        self, lookups: KeyedJaggedTensor, gradients: Tensor, share: float
    ) -> Tensor:
        """The gradient of each lookup's weight, by the row as it is now.

        It is not multiplied by `share`, as TorchRec leaves that to DistributedDataParallel. Takes
        memory for the rows of `_RUN` lookups. See `reduce` for the arguments.
        """
        by_bag, places = self._by_bag(lookups, gradients, share)
        weights = self.tensors[0]
        runs = (torch.split(column, _RUN) for column in (lookups.values(), places))
        return torch.cat(
            [(weights[rows] * by_bag[at]).sum(1) for rows, at in zip(*runs, strict=True)]
        )

    def _by_bag(
        self, lookups: KeyedJaggedTensor, gradients: Tensor, share: float
    ) -> tuple[Tensor, Tensor]:
        """Clipped gradients, float32[n, width], and int64[lookups], which of these each has."""
        if self.layout.settings.get("gradient_clipping"):
            most = self.layout.settings.get("max_gradient", 1.0) / share
            gradients = gradients.clamp(-most, most)
        rows, blocks = lookups.values(), self._block_count
        places = torch.arange(len(rows), device=rows.device)
        if self._pools:  # of each bag, in the order of lookups: that of its input, in its block
            bags = torch.arange(len(gradients) * blocks, device=rows.device)
            bags = bags.view(-1, blocks).T.reshape(-1)
            places = torch.repeat_interleave(bags, lookups.lengths(), output_size=len(rows))
        return gradients.reshape(-1, self.layout.width), places

    def train(self, rows: Tensor, gradients: Tensor, rates: SlabRates, count: float) -> None:
        """Train rows as the backward of lookups with these gradients would.

        Args:
            rows: int64[n], each once.
            gradients: float32[n, width].
            rates: learning rate of each slab.
            count: lookups before this one.
        """
        if not len(rows):
            return
        distinct = sorted(set(rates))
        if len(distinct) == 1:
            self.train_at(distinct[0], count)
            self._update(rows, gradients)
            return
        device = rows.device
        ends = torch.tensor([slab.row for slab in self.layout.slabs[1:]], device=device)
        slabs = torch.bucketize(rows, ends, right=True)
        kinds = torch.tensor([distinct.index(rate) for rate in rates], device=device)[slabs]
        for kind, rate in enumerate(distinct):
            mine = (kinds == kind).nonzero().view(-1)
            if len(mine):  # FBGEMM makes nothing of no lookups
                self.train_at(rate, count)
                self._update(rows[mine], gradients[mine])

    def _update(self, rows: Tensor, gradients: Tensor) -> None:
        blocks, width = self._block_count, self.layout.width
        each = -(-len(rows) // blocks)  # any block reaches any row: fill one after the other
        bags = torch.arange(blocks * each + 1, device=rows.device).clamp_(max=len(rows))
        spread = gradients.new_zeros(blocks * each, width)
        spread[: len(rows)] = gradients
        with torch.enable_grad(), without_clipping(self._tables):
            pooled = self._tables(rows, bags)
        pooled.backward(spread.view(blocks, each, width).transpose(0, 1).reshape(each, -1))


def _factors(lookups: KeyedJaggedTensor) -> Tensor | None:
    """float32[lookups], by which embeddings are multiplied; None where they are not.

    TorchRec drops weights that are no floating point before its kernels, which take any others.
    """
    weights = lookups.weights_or_none()
    return weights.float() if weights is not None and weights.is_floating_point() else None


def assemble_bags(
    layout: HotLayout, found: Sequence[Tensor], input_count: int, device: torch.device
) -> Tensor:
    """Join float32[inputs, columns] of each kernel, in the order of the collection's output."""
    if layout.is_one_output:
        return found[0]
    split = [
        torch.split(columns, kernel.width, dim=1)
        for columns, kernel in zip(found, layout.kernels, strict=True)
    ]
    return torch.cat(
        [
            torch.zeros(input_count, block.width, device=device)
            if block.kernel is None
            else split[block.kernel][block.number]
            for block in layout.blocks
        ],
        dim=1,
    )


def assemble_sequences(
    layout: HotLayout,
    found: Sequence[Tensor],
    lookups: Sequence[KeyedJaggedTensor],
    device: torch.device,
) -> list[Tensor]:
    """Float32[lookups, width] of each output, from those of each kernel."""
    split = [
        torch.split(rows, kernel.length_per_key())
        for rows, kernel in zip(found, lookups, strict=True)
    ]
    outputs = []
    for blocks in layout.outputs:
        columns = [split[b.kernel][b.number] for b in blocks if b.kernel is not None]
        if not columns:  # no hot row can be in it
            columns = [torch.zeros(0, blocks[0].width, device=device)]
        outputs.append(columns[0] if len(columns) == 1 else torch.cat(columns, dim=1))
    return outputs


def kernel_tensors(tables: SplitTableBatchedEmbeddingBagsCodegen) -> list[list[Tensor]]:
    """Weights of each table of an FBGEMM kernel, and the states of its optimizer behind them.

    They are views: what is written to them is trained from.
    """
    weights = tables.split_embedding_weights()
    states = tables.split_optimizer_states() or [[] for _ in weights]
    return [[w, *s] for w, s in zip(weights, states, strict=True)]
