"""TorchRec's sharded EmbeddingCollection with its hot rows on the device."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.embedding import EmbeddingCollectionContext, ShardedEmbeddingCollection
from torchrec.distributed.embedding_sharding import EmbeddingShardingInfo
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.types import (
    Awaitable,
    LazyAwaitable,
    LazyNoWait,
    ParameterSharding,
    ShardingEnv,
)
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.shard.checks import check_optimizers, check_plan
from trainobs.fae.shard.hot_store import HotSequenceStore
from trainobs.fae.shard.laid_over import LaidOver, Mode, Passing
from trainobs.fae.shard.order import FeatureSequence, check_order, sequences
from trainobs.fae.shard.partitioned import SequencePartition
from trainobs.fae.shard.translate import Translation


class FAESequenceContext(Passing, EmbeddingCollectionContext):  # type: ignore[misc]  # no types
    """What the stages of one forward pass tell each other.

    Attributes:
        sequences: of each output; none where the tables serve the whole batch.
    """

    sequences: Sequence[FeatureSequence] = ()

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the memory until the stream is done with it."""
        super().record_stream(stream)
        for sequence in self.sequences:
            for tensor in (sequence.lengths, sequence.order, sequence.ids):
                if tensor is not None:
                    tensor.record_stream(stream)


class ShardedFAEEmbeddingCollection(
    LaidOver,
    ShardedEmbeddingCollection,  # type: ignore[misc]  # TorchRec has no types
):
    """A sharded EmbeddingCollection over which hot rows are laid.

    Each lookup has an embedding of its own, in the order of the batch. A mixed batch therefore
    comes whole, also from `pack`, and is taken apart here, which on a GPU waits for the device. All
    else is as in `ShardedFAEEmbeddingBagCollection`, where the arguments are told.
    """

    _store = HotSequenceStore
    _partition = SequencePartition
    _ids: Translation | None = None

    def __init__(
        self,
        module: EmbeddingCollection,
        table_name_to_parameter_sharding: dict[str, ParameterSharding],
        env: ShardingEnv,
        profile: FAEProfile,
        mode: Mode = "overlay",
        **settings: Any,
    ) -> None:
        plan = table_name_to_parameter_sharding
        check_plan(module.embedding_configs(), plan, env, profile, mode)
        infos = self.create_grouped_sharding_infos(module, plan, settings.get("fused_params"))
        all_infos = list(itertools.chain.from_iterable(infos.values()))
        check_optimizers(all_infos)
        super().__init__(module, plan, env, **settings)
        self._sharding_infos = [_without_weights(info) for info in all_infos]
        self._mode = mode
        self._lay_over(profile)
        self._hear_of_loads()

    def _lay_over(self, profile: FAEProfile) -> None:
        super()._lay_over(profile)
        if self._need_indices:
            ids = {table.name: torch.from_numpy(table.hot_ids) for table in profile.tables}
            self._ids = Translation(ids, profile, self._device or torch.device("cpu"))

    @property
    def _configs(self) -> list[EmbeddingConfig]:
        configs: list[EmbeddingConfig] = self._embedding_configs
        return configs

    def _infos(self) -> Iterable[EmbeddingShardingInfo]:
        return self._sharding_infos

    def _output_names(self) -> Iterable[str]:
        # once each: the shards of a column-wise table have one name
        return dict.fromkeys(itertools.chain.from_iterable(self._embedding_names_per_sharding))

    def _prepare_stock(self, cold: KeyedJaggedTensor) -> None:
        self._create_input_dist(cold.keys())

    def create_context(self) -> FAESequenceContext:
        """A context for one forward pass."""
        return FAESequenceContext()

    def input_dist(
        self, ctx: EmbeddingCollectionContext, features: KeyedJaggedTensor
    ) -> Awaitable[Awaitable[KJTList]]:
        """Send cold lookups where their rows are; a pure batch has none, and sends nothing.

        Args:
            ctx: of this forward pass.
            features: a batch, packed or not.

        Raises:
            FAEError: the batch was packed for other hot rows, lacks a feature or the order of its
                lookups, or ranks have batches of different kinds.
        """
        assert isinstance(ctx, FAESequenceContext)
        features = self._whole(features)
        check_order(features)
        batch = self._part(ctx, features)
        if self._mode != "paper" or ctx.is_pure:
            with torch.no_grad():
                names = [feature for feature, _ in self._outputs]
                ctx.sequences = sequences(batch, names, self._ids)
        return self._send_cold(ctx, batch)

    def compute_and_output_dist(
        self, ctx: EmbeddingCollectionContext, input: KJTList
    ) -> LazyAwaitable[dict[str, JaggedTensor]]:
        """Look up cold rows where they are, hot ones here, and put them in order.

        Args:
            ctx: of this forward pass.
            input: cold lookups of all ranks in the rows that this one has.
        """
        assert isinstance(ctx, FAESequenceContext)
        hot = self._found_hot(ctx)
        if hot is None:
            awaitable = super().compute_and_output_dist(ctx, input)
            awaitable.callbacks.append(self._watched)
            return awaitable
        by_name = dict(zip(self._output_names(), ctx.sequences, strict=True))
        if ctx.is_pure:
            return LazyNoWait({name: _jagged(s, hot[s.hot]) for name, s in by_name.items()})
        awaitable = super().compute_and_output_dist(ctx, input)
        awaitable.callbacks.append(
            lambda cold: {
                name: _jagged(s, s.merged(cold[name].values(), hot)) for name, s in by_name.items()
            }
        )
        return awaitable

    def _watched(self, found: dict[str, JaggedTensor]) -> dict[str, JaggedTensor]:
        """The embeddings of a batch that the tables served."""
        assert self._overlay is not None
        for sequence in found.values():
            self._overlay.watch(sequence.values(), by_tables=True)
        return found


def _jagged(sequence: FeatureSequence, embeddings: Tensor) -> JaggedTensor:
    return JaggedTensor(values=embeddings, lengths=sequence.lengths, weights=sequence.ids)


def _without_weights(info: EmbeddingShardingInfo) -> EmbeddingShardingInfo:
    """The same without the whole table, which would stay in memory."""
    light = copy.copy(info)
    light.param = torch.empty(0)
    return light
