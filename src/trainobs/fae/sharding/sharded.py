"""A sharded collection of TorchRec, held by a module that keeps hot rows over its tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.distributed.embedding_sharding import KJTListSplitsAwaitable
from torchrec.distributed.embedding_types import KJTList, ShardedEmbeddingModule
from torchrec.distributed.types import (
    Awaitable,
    EmbeddingModuleShardingPlan,
    LazyAwaitable,
    ShardingEnv,
)
from torchrec.optim.fused import FusedOptimizerModule
from torchrec.optim.keyed import CombinedOptimizer
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.sparse.tensor_dict import maybe_td_to_kjt

from trainobs.core.errors import FAEError
from trainobs.fae.kjt.jagged import with_values
from trainobs.fae.profile.arguments import check_profile
from trainobs.fae.profile.model_tables import trained_row_bytes
from trainobs.fae.profile.profile import FAEProfile, warn_of_unused
from trainobs.fae.sharding.batch import FAEContext, SplitBatch
from trainobs.fae.sharding.bounds import BoundsCheck
from trainobs.fae.sharding.checks import (
    check_optimizers,
    check_plan,
    check_replicas,
    optimizer_of,
    output_type,
    replicated_tables,
)
from trainobs.fae.sharding.hot_collections import HotCollections
from trainobs.fae.sharding.keys import check_hot_keys, check_keys, check_order_of_keys, check_served
from trainobs.fae.sharding.layout import lay_out, without_weights
from trainobs.fae.sharding.mode import Mode
from trainobs.fae.sharding.overlay import WrittenBackOptimizer
from trainobs.fae.sharding.parameters import show_in
from trainobs.fae.sharding.partition import Partition
from trainobs.fae.sharding.planner import check_room, needed_bytes, warn_of_more
from trainobs.fae.sharding.rates import LookupCounts
from trainobs.fae.sharding.replicas import Replicas
from trainobs.fae.sharding.served import FeatureRows, ServedCounts
from trainobs.fae.sharding.torchrec_private import NotWrapped, Plan, StockBags, StockSequences
from trainobs.fae.sharding.write_back import TableWrites, backing_shards


class ShardedFAEModule(
    NotWrapped,
    ShardedEmbeddingModule,  # type: ignore[misc]  # TorchRec has no types
    FusedOptimizerModule,  # type: ignore[misc]
):
    """Keeps hot rows over the tables of a sharded collection of TorchRec, which it holds.

    The stock collection has the tables, saves and loads them, and sends and serves cold lookups.
    Parameters, buffers and values of a state dict have the names that they have there.

    Args:
        module: the collection to shard.
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

    _pools: bool  # whether lookups are pooled by bag

    def __init__(
        self,
        module: Any,
        table_name_to_parameter_sharding: Plan,
        env: ShardingEnv,
        profile: FAEProfile,
        mode: Mode = "overlay",
        **settings: Any,
    ) -> None:
        plan = table_name_to_parameter_sharding
        is_weighted: bool = self._pools and module.is_weighted()
        configs = module.embedding_bag_configs() if self._pools else module.embedding_configs()
        check_plan(configs, plan, env, profile, mode, is_weighted)
        kind = StockBags if self._pools else StockSequences
        infos = kind.infos(module, plan, settings.get("fused_params"))
        # with its number: "cuda" is no key of what is there for the batches of "cuda:0"
        self._device = torch.empty(0, device=settings.get("device") or "cpu").device
        check_optimizers(infos, self._device)
        stock = kind(module, plan, env, **settings)
        super().__init__(settings.get("qcomm_codecs_registry"))
        stock.share_with(self)
        self._stock = stock
        self.module_sharding_plan = stock.module.module_sharding_plan
        replicated = replicated_tables(plan)
        self._configs = [config for config in configs if config.name not in replicated]
        self._infos = [without_weights(info) for info in infos]
        self._output_type = output_type(infos)
        stock.send(self._output_type)
        self._env = env
        self._mode = mode
        self._is_weighted = is_weighted
        self._module_fqn: str | None = settings.get("module_fqn")
        served = [(feature, c.name) for c in configs for feature in c.feature_names]
        names = {f"{feature}@{table}": (feature, table) for feature, table in served}
        names.update((one[0], one) for one in served)  # TorchRec adds the table if there are two
        self._outputs = [names[name] for name in stock.output_names]  # feature, table
        self._collections = HotCollections.from_env(env)
        self._features = list(dict.fromkeys(feature for feature, _ in self._outputs))
        split = [i for i in self._infos if i.embedding_config.name not in replicated]
        bounds = BoundsCheck(split, mode)
        known = frozenset(self._features)
        self._overlay = self._collections.add(profile, known, bounds, bool(replicated))
        self._hot_features = frozenset(f for c in self._configs for f in c.feature_names)
        self._optim = WrittenBackOptimizer(stock.module.fused_optimizer, self._overlay)
        self._first_keys: Sequence[str] = ()
        self._use(profile)
        show_in(stock.module, self.flush, replicated)
        # after TorchRec's hook, which flushes the caches of the tables: no older row may follow
        stock.module.register_state_dict_pre_hook(lambda *_: self.flush())
        self.register_load_state_dict_post_hook(lambda *_: self._overlay.tables_changed())

    @property
    def sharded_collection(self) -> nn.Module:
        """The stock collection; see `trainobs.core.hot_rows`."""
        module: nn.Module = self._stock.module
        return module

    @property
    def served_by_hot_rows(self) -> ServedCounts:
        """What the hot rows did; see `trainobs.core.hot_rows`."""
        return self._overlay.served

    def slots_of_key(self, key: str) -> FeatureRows | None:
        """Feature of a key whose values are slots, and the row of each; None for other keys.

        See `trainobs.embeddings.sites.Site`.
        """
        return self._overlay.served.slots_of_key(key)

    @property
    def fused_optimizer(self) -> CombinedOptimizer:
        """The optimizer of the tables, whose state includes that of the hot rows."""
        return self._optim

    @property
    def unsharded_module_type(self) -> type[nn.Module]:
        """What was sharded."""
        kind: type[nn.Module] = self._stock.module.unsharded_module_type
        return kind

    def refresh(self, profile: FAEProfile) -> None:
        """Keep other rows on the device from here on; all ranks call it between two batches.

        Rows that are no longer hot go back to their tables, and the device is given their memory
        back before others take it. Make the loader's packer anew with the same profile, and let a
        training pipeline run empty before: what was looked up by then is refused in its backward.

        Args:
            profile: which rows are hot now.

        Raises:
            FAEError: it is of another model, or the device has no room; hot rows are then those
                of before, as after any other error.
        """
        before = self._overlay.profile
        check_profile(profile).check(self._configs)
        self.flush()
        for lookup in self._stock.lookups:
            lookup.flush()  # rows in the caches of the tables: to the tables,
            lookup.purge()  # and out, since those that are hot now must not be found there
        self._overlay.let_go()
        failure = None
        try:
            self._use(profile)
        except BaseException as error:
            failure = error.with_traceback(None)  # it keeps what was half made in memory
        if failure is not None:
            self._use(before)
            raise failure

    def update_shards(
        self,
        changed_sharding_params: EmbeddingModuleShardingPlan,
        env: ShardingEnv,
        device: torch.device | None,
    ) -> None:
        """Raise an FAEError: to move tables is untested, as TorchRec cannot do so on hosts."""
        raise FAEError(
            "cannot move tables with hot rows to other ranks",
            f"a reshard of {', '.join(changed_sharding_params)}, which would leave their hot rows "
            "with tables that are gone (github.com/meta-pytorch/torchrec/pull/2852)",
            "save a checkpoint, and load it into a model sharded by the new plan",
        )

    def register_post_lookup_tracker_fn(self, record_fn: Any) -> None:
        """Raise an FAEError: the function would see cold lookups only, and miss what trains."""
        raise FAEError(
            "cannot track the lookups of tables with hot rows",
            f"{getattr(record_fn, '__qualname__', record_fn)}, which would see cold lookups only",
            "track the ids of batches before the model, or use the stock sharder",
        )

    def register_post_odist_tracker_fn(self, record_fn: Any) -> None:
        """Have the stock collection call a function after it sends embeddings."""
        self._stock.module.register_post_odist_tracker_fn(record_fn)

    def flush(self) -> None:
        """Write the hot rows to the tables, optimizer state too; needs no other rank."""
        self._overlay.flush()

    def tables_changed(self) -> None:
        """Read the hot rows from the tables at the next batch; all ranks call it.

        Writes of torch to the tables' parameters, or to tensors of a state dict, are seen. After
        others (to a parameter's `data`, by NumPy) call this, and after those on some ranks only if
        the next batch is pure.
        """
        self._overlay.tables_changed()

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The state dict of the stock collection, with the hot rows written back."""
        state: dict[str, Any] = self._stock.module.state_dict(*args, **kwargs)
        return state

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self.flush()  # a state dict may have some of the tables only
        self._stock.load_from(state_dict, prefix, *rest)

    def reset_parameters(self) -> None:
        """Initialise the tables, hot rows included; optimizer state stays, as in TorchRec's."""
        self.flush()
        self._stock.module.reset_parameters()
        self._overlay.tables_changed()

    def create_context(self) -> FAEContext:
        """A context for one forward pass."""
        return FAEContext(self._stock.module.create_context())

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *batch: Any, **settings: Any) -> LazyAwaitable[Any]:
        """Look a batch up, outside of compiled graphs, which cannot write to views of one table."""
        return super().forward(*batch, **settings)

    def input_dist(
        self, ctx: FAEContext, features: KeyedJaggedTensor
    ) -> Awaitable[Awaitable[KJTList]]:
        """Send cold lookups to where their rows are; a pure batch has none, and sends nothing.

        Args:
            ctx: of this forward pass.
            features: a batch, packed or not.

        Raises:
            FAEError: the batch was packed for other hot rows, lacks a feature or the order of
                sequences, or has weights that are learned; or ranks have batches of different
                kinds.
        """
        features = maybe_td_to_kjt(features, self._features)
        if features.variable_stride_per_key():
            features = self._expanded(features)
        elif features.inverse_indices_or_none() is not None:  # of bags that no inputs share
            features = with_values(features, features.values())
        self._check(features)
        batch = self._split(ctx, features)
        awaitable = self._send_cold(ctx, batch)
        with torch.no_grad():
            self._prepare(ctx, batch)
        return awaitable

    def _check(self, features: KeyedJaggedTensor) -> None:
        """Raise an FAEError if hot lookups of a batch could not be served exactly."""
        raise NotImplementedError

    def _expanded(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """A batch whose bags are of several inputs, with a bag for each of them."""
        raise NotImplementedError

    def _prepare(self, ctx: FAEContext, batch: SplitBatch) -> None:
        """Note in the context what follows from the batch as a whole."""
        raise NotImplementedError

    def prefetch(
        self, dist_input: KJTList, forward_stream: Any = None, ctx: FAEContext | None = None
    ) -> None:
        """Have the caches of the tables read the rows of cold lookups."""
        joins = self._mode != "paper" and self._overlay.rows.joins_mixed
        if joins and (ctx is None or ctx.is_whole):
            dist_input = self._overlay.cold(self._lookups, dist_input)
        super().prefetch(dist_input, forward_stream, ctx)

    def compute(self, ctx: FAEContext, dist_input: Any) -> Any:
        """Not available: the hot lookups of a batch need both steps in one."""
        raise NotImplementedError("call compute_and_output_dist")

    output_dist = compute

    def _use(self, profile: FAEProfile) -> None:
        """Keep the rows of a profile over the tables, which have their newest values."""
        shards = backing_shards(self._stock)
        overlay = self._overlay
        trained = trained_row_bytes((i.embedding_config, optimizer_of(i)) for i in self._infos)
        if self._env.rank == 0:
            warn_of_more(profile, trained)
            warn_of_unused(profile, trained)
        rows: Replicas | Partition
        overlaid = profile.overlaid & {config.name for config in self._configs}
        if self._mode == "partitioned" and overlaid:
            rows = Partition(
                self._infos,
                self._outputs,
                profile,
                shards,
                self._env,
                self._device,
                self._pools,
                self._is_weighted,
                self._stock.lookups,
                overlay.bounds,
            )
        else:
            layout = lay_out(self._infos, self._outputs, profile)
            tables = {slab.table for kernel in layout.kernels for slab in kernel.slabs}
            check_room(needed_bytes(profile, tables, trained, self._mode), self._device)
            if overlay.group is not None:
                check_replicas(layout, self._device)
            rows = Replicas(
                layout, self._device, self._pools, shards, profile, overlay.barrier, overlay.group
            )
        overlay.use(profile, rows, TableWrites(self._stock, shards))
        self._lookup_counts = LookupCounts(shards)
        serve_all = self._mode != "paper"
        overlay.served.use(profile, self._configs, trained, rows.own_bytes, serve_all=serve_all)
        self._checked_served = False

    def _split(self, ctx: FAEContext, features: KeyedJaggedTensor) -> SplitBatch:
        """Split the hot lookups of a batch from the others; where ranks depend on it, wait."""
        overlay = self._overlay
        check_keys(features, overlay.features)
        batch = overlay.separate(features)
        check_hot_keys(batch, self._hot_features)
        if batch.whole is None and not self._checked_served:
            served = self._collections.features(overlay.profile.fingerprint)
            check_served(batch, overlay.profile, served)
            self._checked_served = True
        ctx.batch_number, ctx.is_pure = batch.number, batch.is_pure
        ctx.input_count, ctx.generation = batch.cold.stride(), overlay.generation
        if self._mode == "partitioned" or not batch.is_pure:
            overlay.wait_for_ranks(batch)
        ctx.is_whole = not batch.is_pure and (self._mode == "paper" or overlay.rows.joins_mixed)
        ctx.hot = [] if ctx.is_whole else overlay.rows.gather(batch)
        return batch

    def _send_cold(self, ctx: FAEContext, batch: SplitBatch) -> Awaitable[Awaitable[KJTList]]:
        """Send what the tables serve to where their rows are; a pure batch has nothing to send."""
        if not self._stock.is_prepared:
            self._first_keys = batch.cold.keys()
        if not batch.is_pure:
            check_order_of_keys(batch.cold, self._first_keys)
            sent = self._overlay.whole(batch) if ctx.is_whole else batch.cold
            return self._stock.module.input_dist(ctx.stock, sent)
        if not self._stock.is_prepared:
            self._stock.prepare(batch.cold.keys())  # pipelines expect it after a batch
        return KJTListSplitsAwaitable([], ctx, self._module_fqn, [])

    def _lookup_hot(self, ctx: FAEContext) -> list[Tensor] | None:
        """Embeddings of the hot lookups, see `Replicas.lookup`; None if sent with the others."""
        self._overlay.check_generation(ctx.generation)
        if ctx.is_whole:
            return None
        if ctx.process is not None:
            ctx.hot = self._overlay.rows.processed(ctx.hot, ctx.process)
        hot = self._overlay.lookup(ctx.hot, ctx.batch_number, ctx.input_count)
        if ctx.is_pure:
            self._overlay.served.count(ctx.batch_number)
            self._lookup_counts.skip()
        if self._mode == "paper":
            for embeddings in hot:
                self._overlay.watch(embeddings, by_tables=False)
        return [embeddings.to(self._output_type) for embeddings in hot]

    def _lookup_sent(self, ctx: FAEContext, sent: KJTList) -> LazyAwaitable[Any]:
        """Embeddings of lookups that were sent, as the stock collection gives them."""
        by_tables = ctx.is_whole and self._mode == "paper"
        with self._overlay.serving(ctx.batch_number, self._device, ctx.is_whole, by_tables):
            awaitable = self._stock.module.compute_and_output_dist(ctx.stock, sent)
        if by_tables:
            awaitable.callbacks.append(self._watched)
        return awaitable
