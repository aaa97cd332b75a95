"""Adam for FBGEMM's tables on hosts, which have none: a stand-in for its kernels of GPUs.

TorchRec's sharder and FAE's are both given it, so that tests tell whether hot rows are trained as
the tables are: by the same counts, states and gradients. The arithmetic is that of FBGEMM's
`fbgemm_gpu/codegen/genscript/optimizers.py` (`adam`, `partial_rowwise_adam`); whether a GPU does
the same is for `tests/gpu/parity.py` to tell.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import fbgemm_gpu.split_embedding_codegen_lookup_invokers as invokers
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
    construct_split_state,
)
from torch import Tensor

from trainobs.fae.sharding.torchrec_private import COUNTING


@functools.cache
def install() -> None:
    """Give FBGEMM's tables on hosts Adam, in this process from here on."""
    stock = SplitTableBatchedEmbeddingBagsCodegen.__init__

    @functools.wraps(stock)
    def init(self: Any, embedding_specs: Any, *args: Any, **settings: Any) -> None:
        kind = settings.get("optimizer")
        if kind not in COUNTING or any(spec[3] != ComputeDevice.CPU for spec in embedding_specs):
            stock(self, embedding_specs, *args, **settings)
            return
        settings["optimizer"] = EmbOptimType.EXACT_ADAGRAD  # whose state is the first of Adam's
        stock(self, embedding_specs, *args, **settings)
        self.optimizer = kind
        rowwise = kind is EmbOptimType.PARTIAL_ROWWISE_ADAM
        second = construct_split_state(embedding_specs, rowwise=rowwise, cacheable=False)
        self._apply_split(second, prefix="momentum2", dtype=torch.float32)

    SplitTableBatchedEmbeddingBagsCodegen.__init__ = init
    for name in ("lookup_adam", "lookup_partial_rowwise_adam"):
        module = getattr(invokers, name)
        module.invoke = functools.partial(_invoke, module.invoke, name != "lookup_adam")


def _invoke(
    stock: Any,
    is_rowwise: bool,
    common: Any,
    optimizer: Any,
    first: Any,
    second: Any,
    count: int,
    **rest: Any,
) -> Tensor:
    if not common.host_weights.numel():
        found: Tensor = stock(common, optimizer, first, second, count, **rest)
        return found
    trained = _Adam(optimizer, first, second, count, is_rowwise)
    anchor, weights = common.placeholder_autograd_tensor, common.indice_weights
    pooled: Tensor = _Lookup.apply(anchor, common, trained, weights)
    return pooled


class _Adam(NamedTuple):
    """What FBGEMM gives to its kernels of Adam."""

    settings: Any
    first: Any
    second: Any
    lookup_count: int
    is_rowwise: bool

    def train(self, common: Any, feature: int, rows: Tensor, sums: Tensor) -> None:
        """Train rows, each once, by the sums of their gradients."""
        settings, width = self.settings, sums.shape[1]
        places = rows.unsqueeze(1) * width + torch.arange(width)
        mean = int(self.first.offsets[feature]) + places
        squares, square = sums.square(), int(self.second.offsets[feature]) + places
        if self.is_rowwise:
            squares = squares.mean(1, keepdim=True)
            square = int(self.second.offsets[feature]) + rows.unsqueeze(1)
        weights = common.host_weights.data  # torch does not count writes to it, nor FBGEMM's
        means, mean_squares = self.first.host.data, self.second.host.data
        means[mean] = means[mean].lerp(sums, 1 - settings.beta1)
        mean_squares[square] = mean_squares[square].lerp(squares, 1 - settings.beta2)
        of_mean = means[mean] / (1 - settings.beta1**self.lookup_count)
        of_square = mean_squares[square] / (1 - settings.beta2**self.lookup_count)
        place = int(common.weights_offsets[feature]) + places
        old = weights[place].float()
        change = of_mean / (of_square.sqrt() + settings.eps) + settings.weight_decay * old
        weights[place] = (old - common.learning_rate_tensor * change).to(weights.dtype)


class _Lookup(torch.autograd.Function):
    """A lookup whose backward trains the rows."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, common: Any, adam: _Adam, weights: Tensor | None
    ) -> Tensor:
        ctx.common, ctx.adam = common, adam
        output = []
        bags = _bags(common)
        for feature, rows, bag, scale in bags:
            values = common.host_weights[_places(common, feature, rows)].float()
            if bag is None:
                output.append(values)
            else:
                size = (len(common.offsets) - 1) // len(bags)
                pooled = torch.zeros(size, values.shape[1])
                output.append(pooled.index_add_(0, bag, values * scale.unsqueeze(1)))
        kind = SparseType.from_int(common.output_dtype).as_dtype()
        return torch.cat(output, dim=0 if bags[0][2] is None else 1).to(kind)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        common, settings = ctx.common, ctx.adam.settings
        gradient = gradient.float()
        if settings.gradient_clipping:
            gradient = gradient.clamp(-settings.max_gradient, settings.max_gradient)
        found: dict[int, tuple[int, list[Tensor], list[Tensor]]] = {}  # by place of the table
        at = 0
        of_weights = []
        for feature, rows, bag, scale in _bags(common):
            width = int(common.D_offsets[feature + 1] - common.D_offsets[feature])
            if bag is None:
                mine, at = gradient[at : at + len(rows)], at + len(rows)
            else:
                mine, at = gradient[:, at : at + width][bag], at + width
                values = common.host_weights[_places(common, feature, rows)]
                of_weights.append((values * mine).sum(1))
                mine = mine * scale.unsqueeze(1)
            table = found.setdefault(int(common.weights_offsets[feature]), (feature, [], []))
            table[1].append(rows)
            table[2].append(mine)
        for feature, of_rows, gradients in found.values():
            rows, places = torch.cat(of_rows).unique(return_inverse=True)
            sums = torch.zeros(len(rows), gradients[0].shape[1])
            sums.index_add_(0, places, torch.cat(gradients))
            ctx.adam.train(common, feature, rows, sums)
        learned = torch.cat(of_weights) if ctx.needs_input_grad[3] else None
        return torch.zeros_like(common.placeholder_autograd_tensor), None, None, learned


def _bags(common: Any) -> list[tuple[int, Tensor, Tensor | None, Tensor]]:
    """Of each feature: its number, rows, the bag of each (None: not pooled), and their scale."""
    features = len(common.D_offsets) - 1
    pools = common.pooling_mode != PoolingMode.NONE.value
    lengths = torch.diff(common.offsets.long()).view(features, -1)
    ends = lengths.sum(1).cumsum(0).tolist()
    found = []
    for feature, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        counts = lengths[feature]
        bag = torch.repeat_interleave(torch.arange(len(counts)), counts) if pools else None
        scale = torch.ones(end - begin)
        if common.indice_weights is not None:
            scale = common.indice_weights[begin:end]
        if common.pooling_mode == PoolingMode.MEAN.value:
            scale = scale / counts[bag]
        found.append((feature, common.indices[begin:end].long(), bag, scale))
    return found


def _places(common: Any, feature: int, rows: Tensor) -> Tensor:
    """Where the values of rows are in the weights of all tables: [rows, width]."""
    width = int(common.D_offsets[feature + 1] - common.D_offsets[feature])
    return int(common.weights_offsets[feature]) + rows.unsqueeze(1) * width + torch.arange(width)
