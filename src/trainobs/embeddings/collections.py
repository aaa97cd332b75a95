"""TorchRec: the tables of its collections, sharded or not.

Imported only where a model has such a collection, so torchrec is never loaded for others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torchrec.modules.embedding_configs import DATA_TYPE_NUM_BITS, BaseEmbeddingConfig

from trainobs.core.embedding_table import EmbeddingTable
from trainobs.embeddings.sites import Site
from trainobs.embeddings.table import Gradient, TablePart, WatchedTable, device_memory, reads

_KERNELS = {
    "dense": "hbm",
    "fused": "hbm",
    "fused_uvm": "uvm",
    "fused_uvm_caching": "uvm_caching",
    "quant": "hbm",
    "quant_uvm": "uvm",
    "quant_uvm_caching": "uvm_caching",
}
"""Compute kernels -> memory on a GPU; on a CPU all of them use the host's."""


def collection_tables(site: Site, rank: int) -> list[WatchedTable]:
    """The tables of a collection, whose features are put into `site`."""
    module: Any = site.collection
    plan = getattr(module, "module_sharding_plan", None)
    configs: Sequence[BaseEmbeddingConfig] = next(
        list(getattr(module, name))
        for name in ("_embedding_bag_configs", "_embedding_configs")
        if hasattr(module, name)
    )
    tables = []
    for index, config in enumerate(configs):
        for feature in config.feature_names:
            site.features.setdefault(feature, []).append(index)
        sharding = plan.get(config.name) if plan is not None else None
        tables.append(
            _whole(site, config) if sharding is None else _sharded(site, config, sharding, rank)
        )
    return tables


def _whole(site: Site, config: BaseEmbeddingConfig) -> WatchedTable:
    """A table of a collection that is not sharded."""
    module: Any = site.collection
    held = getattr(module, "embedding_bags", None) or module.embeddings
    weight = held[config.name].weight
    memory = device_memory(weight.device)
    row_bytes = config.embedding_dim * weight.element_size()
    part = TablePart(0, memory, 0, config.num_embeddings, row_bytes)
    return WatchedTable(
        _info(site, config, row_bytes, memory),
        reads([part], config.num_embeddings, 0),
        Gradient.FUSED if hasattr(module, "fused_optimizer") else Gradient.DENSE,
        weight,
    )


def _sharded(site: Site, config: BaseEmbeddingConfig, sharding: Any, rank: int) -> WatchedTable:
    """A table that a plan has split or put somewhere."""
    module: Any = site.collection
    row_bytes = config.embedding_dim * DATA_TYPE_NUM_BITS[config.data_type] / 8
    rows, kernel = config.num_embeddings, sharding.compute_kernel
    on_host = getattr(module, "_device", None) == torch.device("cpu")
    site.near = "host" if on_host else "hbm"
    memory = "host" if on_host else _KERNELS.get(kernel, kernel)
    shards = getattr(sharding.sharding_spec, "shards", None)
    if shards is None:  # data_parallel: each rank has it all
        parts = [TablePart(rank, memory, 0, rows, row_bytes)]
    else:
        parts = [
            TablePart(
                shard.placement.rank(),
                memory,
                shard.shard_offsets[0],
                shard.shard_offsets[0] + shard.shard_sizes[0],
                row_bytes * shard.shard_sizes[1] / config.embedding_dim,
            )
            for shard in shards
        ]
    return WatchedTable(
        _info(site, config, row_bytes, f"{memory} {sharding.sharding_type}"),
        reads(parts, rows, rank),
        Gradient.DENSE if kernel == "dense" else Gradient.FUSED,
    )


def _info(
    site: Site, config: BaseEmbeddingConfig, row_bytes: float, placement: str
) -> EmbeddingTable:
    return EmbeddingTable(
        name=config.name,
        row_count=config.num_embeddings,
        dim=config.embedding_dim,
        row_bytes=round(row_bytes),
        module=site.path,
        features=tuple(config.feature_names),
        placement=placement,
    )
