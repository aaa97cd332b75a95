"""TorchRec's sharded EmbeddingBagCollection with its hot rows on the device."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.embeddingbag import (
    EmbeddingBagCollectionAwaitable,
    ShardedEmbeddingBagCollection,
)
from torchrec.distributed.types import (
    Awaitable,
    LazyAwaitable,
    NoWait,
    ParameterSharding,
    ShardingEnv,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.shard.checks import check_means, check_optimizers, check_plan
from trainobs.fae.shard.keys import check_weights
from trainobs.fae.shard.means import MeanDivision
from trainobs.fae.shard.sharded import FAEContext, Mode, ShardedFAEModule
from trainobs.fae.shard.torchrec_private import StockBags


class ShardedFAEEmbeddingBagCollection(ShardedFAEModule):
    """Keeps hot rows over the tables of a sharded EmbeddingBagCollection.

    It trains, saves and loads what the stock one does. Hot rows are looked up and trained in a
    replica on this rank's device, cold ones in the stock tables; a pure batch leaves these alone,
    without a collective in its forward. `state_dict` and the fused optimizer's state write the hot
    rows back first; call `flush` before you read the tables in another way.

    Args:
        module: the collection.
        table_name_to_parameter_sharding: the plan.
        env: the ranks.
        profile: which rows are hot.
        mode: "overlay": hot rows are looked up and trained on the device in every batch.
            "paper", as FAE's authors had it: mixed batches are looked up in the tables alone, and
            hot rows go back and forth wherever a batch of one kind follows one of the other.
            "partitioned": as "overlay", but each rank keeps the hot rows of its own shards and
            serves all ranks.
        **settings: those of the stock collection.

    Raises:
        FAEError: the profile is of another model, or the plan, a table's optimizer or the ranks'
            layout is one with which hot rows could not be exact.
    """

    _pools = True
    _stock: StockBags

    def __init__(
        self,
        module: EmbeddingBagCollection,
        table_name_to_parameter_sharding: dict[str, ParameterSharding],
        env: ShardingEnv,
        profile: FAEProfile,
        mode: Mode = "overlay",
        **settings: Any,
    ) -> None:
        plan = table_name_to_parameter_sharding
        configs, is_weighted = module.embedding_bag_configs(), module.is_weighted()
        check_plan(configs, plan, env, profile, mode)
        check_means(configs, plan, is_weighted)
        kind = ShardedEmbeddingBagCollection
        grouped = kind.create_grouped_sharding_infos(
            module, plan, "embedding_bags.", settings.get("fused_params")
        )
        infos = list(itertools.chain.from_iterable(grouped.values()))
        check_optimizers(infos)
        stock = StockBags(kind(module, plan, env, **settings))
        super().__init__(stock, configs, infos, env, profile, mode, settings, is_weighted)
        self._means = MeanDivision(stock, configs, plan, self._outputs)

    def input_dist(
        self, ctx: FAEContext, features: KeyedJaggedTensor
    ) -> Awaitable[Awaitable[KJTList]]:
        """Send cold lookups to where their rows are; a pure batch has none, and sends nothing.

        Args:
            ctx: of this forward pass.
            features: a batch, packed or not.

        Raises:
            FAEError: the batch was packed for other hot rows, lacks a feature or has weights that
                are learned, or ranks have batches of different kinds.
        """
        features = self._kjt(features)
        check_weights(features.weights_or_none(), is_weighted=self._is_weighted)
        batch = self._split(ctx, features)
        awaitable = self._send_cold(ctx, batch)
        with torch.no_grad():
            divisor, ctx.lengths = self._means.divisors(batch)
            if divisor is not None:
                ctx.stock.divisor = divisor
        return awaitable

    def compute_and_output_dist(
        self, ctx: FAEContext, input: KJTList
    ) -> LazyAwaitable[KeyedTensor]:
        """Look up cold rows where they are and hot ones here, and add up.

        Args:
            ctx: of this forward pass.
            input: cold lookups of all ranks in the rows that this one has.
        """
        for lookups in input:  # a feature processor gives them weights on their way
            check_weights(lookups.weights_or_none(), is_weighted=False)
        hot = self._lookup_hot(ctx)
        if hot is not None and ctx.is_pure:
            awaitable = self._pooled(ctx, hot)
        else:
            awaitable = self._stock.module.compute_and_output_dist(ctx.stock, input)
            if hot is None:
                awaitable.callbacks.append(self._watched)
            else:
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
            embedding_names=self._stock.output_names(),
        )
        if ctx.stock.divisor is not None:
            awaitable.callbacks.append(partial(_changed, torch.div, ctx.stock.divisor))
        return awaitable


def _changed(operation: Any, other: Tensor, pooled: KeyedTensor) -> KeyedTensor:
    """The same keys, with the result of an operation on the values and another tensor."""
    return KeyedTensor(
        keys=pooled.keys(),
        length_per_key=pooled.length_per_key(),
        values=operation(pooled.values(), other),
        key_dim=1,
    )
