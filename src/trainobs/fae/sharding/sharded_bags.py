"""TorchRec's sharded EmbeddingBagCollection with its hot rows on the device.

TorchRec pools means in two ways. Row-wise shards pool sums, and a callback of the collection
divides by the lengths of the bags; it also divides what other tables pooled, and adds 1e-6. Other
shards pool means in FBGEMM. Half a bag has no mean, so here they all pool sums, and the same
divisions follow, by the lengths of whole bags.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from torch import Tensor
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionAwaitable
from torchrec.distributed.types import LazyAwaitable, NoWait
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from trainobs.core.errors import FAEError
from trainobs.fae.kjt.expand import expanded
from trainobs.fae.kjt.jagged import constant, lengths_of
from trainobs.fae.sharding.batch import FAEContext, SplitBatch
from trainobs.fae.sharding.checks import DIVIDED_BY_COLLECTION
from trainobs.fae.sharding.keys import check_undivided, check_weights
from trainobs.fae.sharding.sharded import ShardedFAEModule
from trainobs.fae.sharding.torchrec_private import StockBags, table_kernels


class ShardedFAEEmbeddingBagCollection(ShardedFAEModule):
    """Keeps hot rows over the tables of a sharded EmbeddingBagCollection.

    It trains, saves and loads what the stock one does. Hot rows are looked up and trained in a
    replica on this rank's device, cold ones in the stock tables; a pure batch leaves these alone,
    without a collective in its forward. `state_dict`, the fused optimizer's state and operators of
    torch on the tables' parameters write the hot rows back first.
    See `ShardedFAEModule` for the arguments.
    """

    _pools = True
    _stock: StockBags

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._mean_tables = frozenset(  # whose means FBGEMM would pool
            config.name
            for config in self._configs
            if config.pooling is PoolingType.MEAN
            and self.module_sharding_plan[config.name].sharding_type not in DIVIDED_BY_COLLECTION
        )
        for kernel, _ in table_kernels(self._stock):
            kernel.pooling_mode = PoolingMode.SUM

    def _check(self, features: KeyedJaggedTensor) -> None:
        weights = features.weights_or_none()
        check_weights(weights, is_weighted=self._is_weighted)
        check_undivided(weights, self._mean_tables)

    def _expanded(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        if any((info.fused_params or {}).get("gradient_clipping") for info in self._infos):
            raise FAEError(
                "cannot train on a batch with a stride for each key (VBE)",
                "gradient_clipping, which TorchRec does to the gradients of bags that inputs share",
                "give each input a bag of its own, or train without clipping",
            )
        return expanded(features)

    def compute_and_output_dist(
        self, ctx: FAEContext, input: KJTList
    ) -> LazyAwaitable[KeyedTensor]:
        """Look up cold rows where they are and hot ones here, and add up.

        Args:
            ctx: of this forward pass.
            input: cold lookups of all ranks in the rows that this one has.
        """
        if ctx.process is None:  # else a feature processor gives hot lookups weights as well
            for lookups in input:
                check_weights(lookups.weights_or_none(), is_weighted=False)
        found = self._lookup_hot(ctx)
        hot = None if found is None else found[0]
        if hot is not None and ctx.is_pure:
            awaitable = self._pooled(ctx, hot)
        else:
            awaitable = self._lookup_sent(ctx, input)
            if hot is not None:
                awaitable.callbacks.insert(0, partial(_changed, torch.add, hot))
        if ctx.lengths is not None:
            awaitable.callbacks.append(partial(_changed, torch.div, ctx.lengths))
        return awaitable

    def _watched(self, pooled: KeyedTensor) -> KeyedTensor:
        """The embeddings of a batch that the tables served."""
        self._overlay.watch(pooled.values(), by_tables=True)
        return pooled

    def _pooled(self, ctx: FAEContext, hot: Tensor) -> LazyAwaitable[KeyedTensor]:
        """What the stock collection would give for a batch without cold lookups."""
        awaitable = EmbeddingBagCollectionAwaitable(
            awaitables=[NoWait(hot)],
            embedding_dims=self._stock.output_widths,
            embedding_names=self._stock.output_names,
        )
        if ctx.stock.divisor is not None:
            awaitable.callbacks.append(partial(_changed, torch.div, ctx.stock.divisor))
        return awaitable

    def _prepare(self, ctx: FAEContext, batch: SplitBatch) -> None:
        """Set what sums are divided by, from the lengths of whole bags."""
        if not (self._stock.divides_means or self._mean_tables):
            return
        keys = batch.cold.keys()
        lengths = _whole_bags(lengths_of(batch.cold), lengths_of(batch.hot), batch)
        if self._stock.divides_means:
            amounts = lengths
            if batch.cold.weights_or_none() is not None:
                amounts = _whole_bags(_weights_of(batch.cold), _weights_of(batch.hot), batch)
            ctx.stock.divisor = self._stock.mean_divisor(keys, amounts)
        if self._mean_tables:
            device = lengths.device
            places = tuple(keys.index(feature) for feature, _ in self._outputs)
            rows = lengths.index_select(0, constant(places, device)).float()
            is_sum = tuple(table not in self._mean_tables for _, table in self._outputs)
            sums = constant(is_sum, device, torch.bool).unsqueeze(1)
            ctx.lengths = torch.repeat_interleave(
                rows.clamp(min=1.0).masked_fill(sums, 1.0).to(self._output_type).T,
                self._stock.widths_on_device,
                dim=1,
                output_size=sum(self._stock.output_widths),
            )


def _whole_bags(cold: Tensor, hot: Tensor, batch: SplitBatch) -> Tensor:
    """Add up what a bag has among cold lookups and among hot ones: [keys of `cold`, inputs]."""
    return cold.index_add(0, constant(batch.pairs, cold.device), hot.to(cold.dtype))


def _weights_of(kjt: KeyedJaggedTensor) -> Tensor:
    """Sum of the weights of each bag: float32[keys, inputs]."""
    sums: Tensor = torch.ops.fbgemm.segment_sum_csr(1, kjt.offsets().int(), kjt.weights())
    return sums.view(len(kjt.keys()), -1)


def _changed(operation: Any, other: Tensor, pooled: KeyedTensor) -> KeyedTensor:
    """The same keys, with the result of an operation on the values and another tensor."""
    return KeyedTensor(
        keys=pooled.keys(),
        length_per_key=pooled.length_per_key(),
        values=operation(pooled.values(), other),
        key_dim=1,
    )
