"""TorchRec's sharded EmbeddingBagCollection with its hot rows on the device."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.embedding_sharding import EmbeddingShardingInfo
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.embeddingbag import (
    EmbeddingBagCollectionAwaitable,
    EmbeddingBagCollectionContext,
    ShardedEmbeddingBagCollection,
    _create_mean_pooling_divisor,
)
from torchrec.distributed.types import (
    Awaitable,
    LazyAwaitable,
    NoWait,
    ParameterSharding,
    ShardingEnv,
)
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from trainobs.fae.kjt.constants import constant
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.shard.batch import SplitBatch
from trainobs.fae.shard.checks import check_means, check_optimizers, check_plan
from trainobs.fae.shard.hot_store import HotStore
from trainobs.fae.shard.keys import check_weights
from trainobs.fae.shard.laid_over import LaidOver, Mode, Passing
from trainobs.fae.shard.partitioned import Partition
from trainobs.fae.shard.pooling import lengths_of, mean_tables, pool_sums, weights_of, whole_bags


class FAEContext(Passing, EmbeddingBagCollectionContext):  # type: ignore[misc]  # has no types
    """What the stages of one forward pass tell each other.

    Attributes:
        lengths: float32[inputs, columns] to divide by, of means that FBGEMM would pool; None
            where there are none.
    """

    lengths: Tensor | None = None

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the memory until the stream is done with it."""
        super().record_stream(stream)
        if self.lengths is not None:
            self.lengths.record_stream(stream)


class ShardedFAEEmbeddingBagCollection(
    LaidOver,
    ShardedEmbeddingBagCollection,  # type: ignore[misc]  # TorchRec has no types
):
    """A sharded EmbeddingBagCollection over which hot rows are laid.

    It trains, saves and loads what the stock one does. Hot rows are looked up and trained in a
    replica on this rank's device, cold ones in the stock tables; a pure batch leaves these alone,
    without a collective in its forward. `state_dict` and the fused optimizer's state write the hot
    rows back first; whoever reads the tables in another way calls `flush`.

    Args:
        module: the collection.
        table_name_to_parameter_sharding: the plan.
        env: the ranks.
        profile: which rows are hot.
        mode: "overlay": hot rows are looked up and trained on the device in every batch.
            "paper", as FAE's authors had it: mixed batches are looked up in the tables alone, and
            hot rows go back and forth wherever batches of the two kinds meet. "partitioned": as
            "overlay", but each rank keeps the hot rows of its own shards and serves all ranks.
        **settings: those of the stock collection.

    Raises:
        FAEError: the profile is of another model, or the plan, a table's optimizer or the ranks'
            layout is one with which hot rows could not be exact.
    """

    _store = HotStore
    _partition = Partition

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
        configs = module.embedding_bag_configs()
        check_plan(configs, plan, env, profile, mode)
        check_means(configs, plan, module.is_weighted())
        infos = self.create_grouped_sharding_infos(
            module, plan, "embedding_bags.", settings.get("fused_params")
        )
        check_optimizers(itertools.chain.from_iterable(infos.values()))
        super().__init__(module, plan, env, **settings)
        self._mode = mode
        self._mean_tables = mean_tables(configs, plan)
        self._lay_over(profile)
        self._hear_of_loads()

    def _lay_over(self, profile: FAEProfile) -> None:
        pool_sums(self._lookups)
        super()._lay_over(profile)

    @property
    def _configs(self) -> list[EmbeddingBagConfig]:
        configs: list[EmbeddingBagConfig] = self._embedding_bag_configs
        return configs

    def _infos(self) -> Iterable[EmbeddingShardingInfo]:
        return itertools.chain.from_iterable(self.sharding_type_to_sharding_infos.values())

    def _output_names(self) -> Iterable[str]:
        names: list[str] = self._embedding_names
        return names

    def create_context(self) -> FAEContext:
        """A context for one forward pass."""
        return FAEContext()

    def input_dist(
        self, ctx: EmbeddingBagCollectionContext, features: KeyedJaggedTensor
    ) -> Awaitable[Awaitable[KJTList]]:
        """Send cold lookups where their rows are; a pure batch has none, and sends nothing.

        Args:
            ctx: of this forward pass.
            features: a batch, packed or not.

        Raises:
            FAEError: the batch was packed for other hot rows, lacks a feature or has weights that
                are learned, or ranks have batches of different kinds.
        """
        assert isinstance(ctx, FAEContext)
        features = self._whole(features)
        check_weights(features.weights_or_none(), is_weighted=self._is_weighted)
        batch = self._part(ctx, features)
        awaitable = self._send_cold(ctx, batch)
        with torch.no_grad():
            self._divide(ctx, batch)
        return awaitable

    def compute_and_output_dist(
        self, ctx: EmbeddingBagCollectionContext, input: KJTList
    ) -> LazyAwaitable[KeyedTensor]:
        """Look up cold rows where they are, hot ones here, and add up.

        Args:
            ctx: of this forward pass.
            input: cold lookups of all ranks in the rows that this one has.
        """
        assert isinstance(ctx, FAEContext)
        for lookups in input:  # a feature processor gives them weights on their way
            check_weights(lookups.weights_or_none(), is_weighted=False)
        hot = self._found_hot(ctx)
        if hot is not None and ctx.is_pure:
            return self._divided(ctx, self._of_hot_rows(ctx, hot))
        awaitable = super().compute_and_output_dist(ctx, input)
        if hot is not None:
            awaitable.callbacks.insert(
                0, lambda pooled: _with_values(pooled, pooled.values() + hot)
            )
        else:
            awaitable.callbacks.append(self._watched)
        return self._divided(ctx, awaitable)

    def _watched(self, pooled: KeyedTensor) -> KeyedTensor:
        """The embeddings of a batch that the tables served."""
        assert self._overlay is not None
        self._overlay.watch(pooled.values(), by_tables=True)
        return pooled

    def _divided(
        self, ctx: FAEContext, sums: LazyAwaitable[KeyedTensor]
    ) -> LazyAwaitable[KeyedTensor]:
        """The sums, divided where they are of means that FBGEMM would pool."""
        if ctx.lengths is not None:
            lengths = ctx.lengths
            sums.callbacks.append(lambda pooled: _with_values(pooled, pooled.values() / lengths))
        return sums

    def _of_hot_rows(self, ctx: FAEContext, hot: Tensor) -> LazyAwaitable[KeyedTensor]:
        """What the stock collection would give for a batch without cold lookups."""
        awaitable = EmbeddingBagCollectionAwaitable(
            awaitables=[NoWait(hot)],
            embedding_dims=self._embedding_dims,
            embedding_names=self._embedding_names,
        )
        if ctx.divisor is not None:
            divisor = ctx.divisor
            awaitable.callbacks.append(
                lambda pooled: _with_values(pooled, pooled.values() / divisor)
            )
        return awaitable

    def _prepare_stock(self, cold: KeyedJaggedTensor) -> None:
        self._create_input_dist(cold.keys())
        if self._has_mean_pooling_callback:
            self._init_mean_pooling_callback(cold.keys(), None)

    def _divide(self, ctx: FAEContext, batch: SplitBatch) -> None:
        """Say what to divide sums by, from the lengths of whole bags."""
        if not (self._has_mean_pooling_callback or self._mean_tables):
            return
        lengths = whole_bags(lengths_of(batch.cold), lengths_of(batch.hot), batch.twins)
        if self._has_mean_pooling_callback:
            amounts = lengths
            if batch.cold.weights_or_none() is not None:
                amounts = whole_bags(weights_of(batch.cold), weights_of(batch.hot), batch.twins)
            ctx.divisor = self._stock_divisor(batch.cold, amounts)
        if self._mean_tables:
            keys, device = batch.cold.keys(), lengths.device
            places = tuple(keys.index(feature) for feature, _ in self._outputs)
            rows = lengths.index_select(0, constant(places, device)).float()
            is_sum = tuple(table not in self._mean_tables for _, table in self._outputs)
            sums = constant(is_sum, device, torch.bool).unsqueeze(1)
            ctx.lengths = torch.repeat_interleave(
                rows.clamp(min=1.0).masked_fill(sums, 1.0).T,
                self._dim_per_key,
                dim=1,
                output_size=sum(self._embedding_dims),
            )

    def _stock_divisor(self, cold: KeyedJaggedTensor, amounts: Tensor) -> Tensor:
        """The stock collection's own divisor, of these amounts [features, inputs]."""
        order = self._features_order or list(range(len(amounts)))
        keys = [cold.keys()[i] for i in order]
        stride = amounts.shape[1]
        divisor: Tensor = _create_mean_pooling_divisor(
            lengths=amounts.index_select(0, constant(tuple(order), amounts.device)).view(-1),
            keys=keys,
            offsets=amounts,  # looked at with weights only, whose sums are in `lengths` already
            stride=stride,
            stride_per_key=[stride] * len(keys),
            dim_per_key=self._dim_per_key,
            pooling_type_to_rs_features=self._pooling_type_to_rs_features,
            embedding_names=self._embedding_names,
            embedding_dims=self._embedding_dims,
            variable_batch_per_feature=False,
            kjt_inverse_order=self._kjt_inverse_order,
            kjt_key_indices=self._kjt_key_indices,
            kt_key_ordering=self._kt_key_ordering,
        )
        return divisor


def _with_values(pooled: KeyedTensor, values: Tensor) -> KeyedTensor:
    """The same keys with other values."""
    return KeyedTensor(
        keys=pooled.keys(), length_per_key=pooled.length_per_key(), values=values, key_dim=1
    )
