"""The sharders: TorchRec's, with frequently accessed rows kept on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
from torchrec.distributed.types import ParameterSharding, ShardingEnv, ShardingType
from torchrec.modules.embedding_configs import BaseEmbeddingConfig

from trainobs.core.errors import SettingError
from trainobs.core.log import logger
from trainobs.fae.profile.arguments import check_profile
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.checks import check_replicated, replicated_tables
from trainobs.fae.sharding.cost import expected_bytes
from trainobs.fae.sharding.left_stock import watch_wrapping
from trainobs.fae.sharding.mode import Mode, check_mode
from trainobs.fae.sharding.sharded_bags import ShardedFAEEmbeddingBagCollection
from trainobs.fae.sharding.sharded_processed import (
    ShardedFAEFeatureProcessedEmbeddingBagCollection,
)
from trainobs.fae.sharding.sharded_sequences import ShardedFAEEmbeddingCollection
from trainobs.fae.sharding.torchrec_private import collection_settings


class _HotRowSharder:
    """What both sharders share; a base before TorchRec's."""

    _sharding_types: tuple[ShardingType, ...]

    def __init__(
        self,
        profile: FAEProfile,
        mode: Mode | Literal["auto"] = "overlay",
        batch_size: int | None = None,
        **settings: Any,
    ) -> None:
        check_mode(mode, "cannot shard with hot rows", "auto")
        if mode == "auto" and (not isinstance(batch_size, int) or batch_size < 1):
            raise SettingError(
                "cannot choose a mode by its cost",
                f"batch_size={batch_size!r}",
                "give the number of inputs in a batch of each rank",
            )
        super().__init__(**settings)
        self.profile = check_profile(profile)
        watch_wrapping()
        self._mode: Mode | Literal["auto"] = mode
        self._batch_size = batch_size

    def shard(
        self,
        module: nn.Module,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> Any:
        """Shard a collection by a plan.

        Raises:
            FAEError: the profile is of another model, or hot rows could not be exact.
        """
        if len(replicated_tables(params)) == len(params):  # no table may have hot rows
            check_replicated(_configs_of(module), self.profile)
            base: Any = super()
            return base.shard(module, params, env, device, module_fqn)
        stock: Any = self
        return stock.sharded_module_type(
            module,
            params,
            env,
            self.profile,
            self._mode_of(module, params, env),
            fused_params=stock.fused_params,
            device=device,
            qcomm_codecs_registry=stock.qcomm_codecs_registry,
            module_fqn=module_fqn,
            **collection_settings(self),
        )

    def _mode_of(
        self, module: nn.Module, params: dict[str, ParameterSharding], env: ShardingEnv
    ) -> Mode:
        """What "auto" stands for in a collection."""
        if self._mode != "auto":
            return self._mode
        replicated = replicated_tables(params)
        configs = [config for config in _configs_of(module) if config.name not in replicated]
        self.profile.check(configs)
        assert self._batch_size is not None
        sent = expected_bytes(self.profile, configs, env.world_size, self._batch_size)
        mode: Mode = "partitioned" if sent.stock < sent.overlay else "overlay"
        if env.rank == 0:
            logger.info(
                "trainobs: mode='auto' is %r: of %d ranks, each is expected to send by %s",
                mode,
                env.world_size,
                sent,
            )
        return mode

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """Ways to split a table, on hosts as on GPUs: those that tables with hot rows can have."""
        return [kind.value for kind in self._sharding_types]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        """Where the tables may be: the fused kernels, without a cache in mode "paper"."""
        kernels = [EmbeddingComputeKernel.FUSED.value]
        if compute_device_type == "cuda":
            kernels.append(EmbeddingComputeKernel.FUSED_UVM.value)
            if self._mode != "paper":
                kernels.append(EmbeddingComputeKernel.FUSED_UVM_CACHING.value)
        return kernels


def _configs_of(collection: Any) -> Sequence[BaseEmbeddingConfig]:
    """The tables of an EmbeddingBagCollection or EmbeddingCollection."""
    pools = hasattr(collection, "embedding_bag_configs")
    found: Sequence[BaseEmbeddingConfig] = (
        collection.embedding_bag_configs() if pools else collection.embedding_configs()
    )
    return found


class FAEEmbeddingBagCollectionSharder(
    _HotRowSharder,
    EmbeddingBagCollectionSharder,  # type: ignore[misc]  # TorchRec has no types
):
    """Shards an EmbeddingBagCollection, and keeps its hot rows on the device of every rank.

        DistributedModelParallel(model, sharders=[FAEEmbeddingBagCollectionSharder(profile)])

    Losses, weights, optimizer state and checkpoints are those of the stock sharder. With several
    ranks, batches come from `pack`, or are looked up as mixed ones.

    Args:
        profile: which rows are hot.
        mode: "overlay" (hot rows are looked up and trained on the device in every batch), "paper"
            (in pure batches only) or "partitioned" (as "overlay", each row on one rank); see
            `ShardedFAEModule`. "auto": "overlay" or "partitioned", whichever is expected to send
            fewer bytes over all steps (`StepBytes`); the log says which, and what both send.
        batch_size: inputs of a rank's batch; for "auto" alone.
        **settings: those of the stock sharder, such as `fused_params`.

    Raises:
        SettingError: there is no such mode, or the profile is none.
    """

    _sharding_types = (
        ShardingType.TABLE_WISE,
        ShardingType.COLUMN_WISE,
        ShardingType.TABLE_COLUMN_WISE,
        ShardingType.ROW_WISE,
        ShardingType.TABLE_ROW_WISE,
        ShardingType.GRID_SHARD,
    )

    @property
    def sharded_module_type(self) -> type[ShardedFAEEmbeddingBagCollection]:
        """What `shard` makes."""
        return ShardedFAEEmbeddingBagCollection


class FAEEmbeddingCollectionSharder(
    _HotRowSharder,
    EmbeddingCollectionSharder,  # type: ignore[misc]  # TorchRec has no types
):
    """Shards an EmbeddingCollection, and keeps its hot rows on the device of every rank.

    Arguments and errors are those of `FAEEmbeddingBagCollectionSharder`; settings of the stock
    sharder are, besides others, `fused_params` and `use_index_dedup`.
    """

    _sharding_types = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE)

    @property
    def sharded_module_type(self) -> type[ShardedFAEEmbeddingCollection]:
        """What `shard` makes."""
        return ShardedFAEEmbeddingCollection


class FAEFeatureProcessedEmbeddingBagCollectionSharder(
    FeatureProcessedEmbeddingBagCollectionSharder  # type: ignore[misc]  # TorchRec has no types
):
    """Shards a FeatureProcessedEmbeddingBagCollection, and keeps its hot rows on the device.

    Arguments and errors are those of `FAEEmbeddingBagCollectionSharder`.
    """

    def __init__(
        self,
        profile: FAEProfile,
        mode: Mode | Literal["auto"] = "overlay",
        batch_size: int | None = None,
        **settings: Any,
    ) -> None:
        self._of_tables = FAEEmbeddingBagCollectionSharder(profile, mode, batch_size, **settings)
        self.profile = profile
        super().__init__(self._of_tables, self._of_tables.qcomm_codecs_registry)

    def shard(
        self,
        module: Any,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> Any:
        """Shard a collection with its feature processors by a plan.

        Raises:
            FAEError: the profile is of another model, or hot rows could not be exact.
        """
        if len(replicated_tables(params)) == len(params):  # no table may have hot rows
            return super().shard(module, params, env, device, module_fqn)
        return self.sharded_module_type(
            module,
            params,
            ebc_sharder=self._of_tables,
            env=env,
            device=device or torch.device("cuda"),  # as in TorchRec
            module_fqn=module_fqn,
        )

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """Those of `FAEEmbeddingBagCollectionSharder`."""
        return self._of_tables.sharding_types(compute_device_type)

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        """Those of `FAEEmbeddingBagCollectionSharder`."""
        return self._of_tables.compute_kernels(sharding_type, compute_device_type)

    @property
    def sharded_module_type(self) -> type[ShardedFAEFeatureProcessedEmbeddingBagCollection]:
        """What `shard` makes."""
        return ShardedFAEFeatureProcessedEmbeddingBagCollection
