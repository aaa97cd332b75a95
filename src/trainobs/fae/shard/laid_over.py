"""What sharded collections with hot rows over their tables have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal
from weakref import WeakSet

import torch
from torch import Tensor
from torchrec.distributed.embedding_sharding import EmbeddingShardingInfo, KJTListSplitsAwaitable
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.types import Awaitable, EmbeddingModuleShardingPlan, ShardingEnv
from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.optim.keyed import CombinedOptimizer
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.sparse.tensor_dict import maybe_td_to_kjt

from trainobs.core.errors import FAEError
from trainobs.fae.profile.arguments import check_profile
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.shard.batch import HotRowStore, SplitBatch
from trainobs.fae.shard.checks import check_layout, check_replicas
from trainobs.fae.shard.hot_store import HotStore
from trainobs.fae.shard.keys import check_keys, check_order_of_keys, check_served, check_twins
from trainobs.fae.shard.layout import lay_out
from trainobs.fae.shard.overlay import HotOverlay
from trainobs.fae.shard.partitioned import Partition
from trainobs.fae.shard.replicas import Replicas
from trainobs.fae.shard.served import TellsOfHotRows
from trainobs.fae.shard.write_back import backing_shards

Mode = Literal["overlay", "paper", "partitioned"]


class Passing:
    """What the stages of one forward pass tell each other, beside what TorchRec's do.

    A base before TorchRec's context, whose constructor differs from version to version.

    Attributes:
        batch_number: how many batches came before.
        input_count: inputs in the batch.
        layer: number of the overlay's hot rows.
        is_pure: whether the tables are left alone.
        hot: hot lookups of each kernel.
    """

    batch_number: int = 0
    input_count: int = 0
    layer: int = 0
    is_pure: bool = False
    hot: Any = ()

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the memory until the stream is done with it."""
        super().record_stream(stream)  # type: ignore[misc]  # of TorchRec's context
        for lookups in self.hot:
            lookups.record_stream(stream)


class LaidOver(TellsOfHotRows):
    """The part of a sharded collection that keeps its hot rows; a base before TorchRec's."""

    _store: type[HotStore]
    _partition: type[Partition]
    _overlay: HotOverlay | None = None
    _mode: Mode
    _optim: CombinedOptimizer
    _lookups: list[Any]
    _env: ShardingEnv
    _device: torch.device | None
    _module_fqn: str | None
    _has_uninitialized_input_dist: bool
    _first_keys: Sequence[str] = ()
    _all: ClassVar[WeakSet[LaidOver]] = WeakSet()  # of this process, of any model

    @property
    def _configs(self) -> Sequence[BaseEmbeddingConfig]:
        """Of the tables."""
        raise NotImplementedError

    def _infos(self) -> Iterable[EmbeddingShardingInfo]:
        """How the plan shards each table."""
        raise NotImplementedError

    def _output_names(self) -> Iterable[str]:
        """Of the embeddings, in the collection's order."""
        raise NotImplementedError

    def _prepare_stock(self, cold: KeyedJaggedTensor) -> None:
        """What the stock collection does at its first batch, without sending one."""
        raise NotImplementedError

    def _lay_over(self, profile: FAEProfile) -> None:
        """Put these hot rows over the tables, which hold the truth."""
        infos = list(self._infos())
        tables = {f: c.name for c in self._configs for f in c.feature_names}
        self._outputs = []
        for name in self._output_names():  # "feature@table" of features that look up several
            feature, _, table = name.partition("@")
            self._outputs.append((feature, table or tables[feature]))
        self._looked_up = frozenset(feature for feature, _ in self._outputs)
        self._knows_others = False
        if self._overlay is None:
            assert self._env.process_group is not None
            self._overlay = HotOverlay(self._env.process_group)
        device = self._device or torch.device("cpu")
        shards = backing_shards(self._lookups)
        rows: HotRowStore
        if self._mode == "partitioned":
            weighted = getattr(self, "_is_weighted", False)
            rows = self._partition(
                infos, self._outputs, profile, shards, self._env, device, weighted
            )
        else:
            layout = lay_out(infos, self._outputs, profile)
            check_layout(layout, profile, device)
            group, agreement = self._overlay.group, self._overlay.agreement
            if group is not None:
                check_replicas(layout, device)
            rows = Replicas(self._store(layout, device), shards, profile, group, agreement)
        self._overlay.lay(profile, rows)
        share = self._env.world_size if self._mode == "partitioned" else 1
        self._overlay.served.lay(profile, self._configs, share)
        if not isinstance(self._optim, _WrittenBackOptimizer):
            self._optim = _WrittenBackOptimizer(self._optim, self._overlay)
        self._all.add(self)

    def _hear_of_loads(self) -> None:
        """Once, after TorchRec's hooks are there."""
        register: Any = self.register_load_state_dict_post_hook  # type: ignore[attr-defined]
        register(lambda module, _: module._tables_changed())

    def refresh(self, profile: FAEProfile) -> None:
        """Keep other rows on the device from here on; all ranks call it between two batches.

        Rows that are no longer hot go back to their tables. Make the loader's packer anew with the
        same profile, and let a training pipeline run empty before.

        Args:
            profile: which rows are hot now.

        Raises:
            FAEError: it is of another model, or the device has no room.
        """
        check_profile(profile).check(self._configs)
        self.flush()
        for lookup in self._lookups:
            lookup.flush()  # rows in the caches of the tables: to the tables,
            lookup.purge()  # and out, since those that are hot now must not be found there
        self._lay_over(profile)

    def update_shards(
        self,
        changed_sharding_params: EmbeddingModuleShardingPlan,
        env: ShardingEnv,
        device: torch.device | None,
    ) -> None:
        """Refuse to move tables; TorchRec's reshard does not work on hosts, so this is untested.

        Raises:
            FAEError: always.
        """
        raise FAEError(
            "cannot move tables with hot rows to other ranks",
            f"a reshard of {', '.join(changed_sharding_params)}",
            "save a checkpoint, and load it into a model sharded by the new plan",
        )

    def flush(self) -> None:
        """Write the hot rows to the tables, optimizer state too; needs no other rank."""
        if self._overlay is not None:
            self._overlay.flush()

    def _tables_changed(self) -> None:
        if self._overlay is not None:
            self._overlay.tables_changed()

    @staticmethod
    def _pre_state_dict_hook(self: Any, prefix: str = "", keep_vars: bool = False) -> None:
        stock: Any = super(LaidOver, type(self))
        stock._pre_state_dict_hook(self, prefix, keep_vars)
        self.flush()  # after the caches of the tables, so that no older row follows

    @staticmethod
    def _pre_load_state_dict_hook(
        self: Any, state_dict: dict[str, Any], prefix: str, *args: Any
    ) -> None:
        self.flush()  # a state dict may have some of the tables only
        stock: Any = super(LaidOver, type(self))
        stock._pre_load_state_dict_hook(self, state_dict, prefix, *args)

    def reset_parameters(self) -> None:
        """Initialise the tables, hot rows included; optimizer state stays, as in TorchRec's."""
        self.flush()
        super().reset_parameters()  # type: ignore[misc]  # of TorchRec's collection
        self._tables_changed()

    def _part(self, ctx: Passing, features: KeyedJaggedTensor) -> SplitBatch:
        """Take the hot lookups of a batch apart, and see that all ranks do the like."""
        assert self._overlay is not None
        check_keys(features, self._looked_up)
        batch = self._overlay.separate(features)
        check_twins(batch, self._looked_up)
        if batch.whole is None and not self._knows_others:
            check_served(batch, self._overlay.profile, self._served_by_all())
            self._knows_others = True
        ctx.batch_number, ctx.is_pure = batch.number, batch.is_pure
        ctx.input_count, ctx.layer = batch.cold.stride(), self._overlay.number
        if self._mode == "partitioned" or not batch.is_pure:
            self._overlay.meet(batch)
        ctx.hot = self._overlay.gather(batch)
        return batch

    def _served_by_all(self) -> frozenset[str]:
        """Features of all collections with these hot rows."""
        assert self._overlay is not None
        mine = self._overlay.profile.fingerprint
        overlays = [(other._looked_up, other._overlay) for other in self._all]
        fitting = [f for f, o in overlays if o is not None and o.profile.fingerprint == mine]
        return self._looked_up.union(*fitting)

    def _send_cold(self, ctx: Passing, batch: SplitBatch) -> Awaitable[Awaitable[KJTList]]:
        """Send what the tables serve where their rows are; a pure batch has none."""
        assert self._overlay is not None
        if self._has_uninitialized_input_dist:
            self._first_keys = batch.cold.keys()
        if not batch.is_pure:
            check_order_of_keys(batch.cold, self._first_keys)
            cold = self._overlay.whole(batch) if self._mode == "paper" else batch.cold
            sent: Awaitable[Awaitable[KJTList]] = super().input_dist(ctx, cold)  # type: ignore[misc]
            return sent
        if self._has_uninitialized_input_dist:
            self._prepare_stock(batch.cold)  # pipelines expect it after a batch
            self._has_uninitialized_input_dist = False
        return KJTListSplitsAwaitable([], ctx, self._module_fqn, [])

    def _found_hot(self, ctx: Passing) -> Tensor | None:
        """Embeddings of the hot lookups; None where the tables serve them too."""
        assert self._overlay is not None
        self._overlay.check_layer(ctx.layer)
        if self._mode == "paper" and not ctx.is_pure:
            self._overlay.hand_over(ctx.batch_number)
            return None
        hot = self._overlay.lookup(ctx.hot, ctx.batch_number, ctx.input_count)
        if self._mode == "paper":
            self._overlay.watch(hot, by_tables=False)
        return hot

    def _whole(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """The batch as TorchRec's collections take it, which may also be a TensorDict."""
        names = list(dict.fromkeys(feature for feature, _ in self._outputs))
        kjt: KeyedJaggedTensor = maybe_td_to_kjt(features, names)
        return kjt


class _WrittenBackOptimizer(CombinedOptimizer):  # type: ignore[misc]
    """The fused optimizer of a collection's tables, whose state has the hot rows' in it."""

    def __init__(self, stock: CombinedOptimizer, overlay: HotOverlay) -> None:
        super().__init__(list(stock.optimizers))
        self._overlay = overlay

    @property
    def state(self) -> Mapping[Tensor, Any]:
        """State of each parameter, for reading or for loading into."""
        self._overlay.flush()
        state: Mapping[Tensor, Any] = super().state
        return state

    def post_load_state_dict(self) -> None:
        """Hear of a load."""
        super().post_load_state_dict()
        self._overlay.tables_changed()
