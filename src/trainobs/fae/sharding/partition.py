"""Hot rows split over the ranks: each keeps those of the shards that it has, and serves all ranks.

They are a sharded collection of their own, planned like the tables they come from, so that a hot
row is on the device of the rank that has it in its table. What moves between the two stays on one
rank. A lookup costs the device links what TorchRec's lookups cost, and no exchange of updates.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchrec.distributed.embedding_sharding import EmbeddingShardingInfo
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.types import (
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingEnv,
    ShardMetadata,
)
from torchrec.modules.embedding_configs import (
    BaseEmbeddingConfig,
    EmbeddingBagConfig,
    EmbeddingConfig,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.fae.kjt.constants import permuted
from trainobs.fae.kjt.split import overlaid_tables
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.batch import SlotRows, SplitBatch
from trainobs.fae.sharding.layout import optimizer_settings
from trainobs.fae.sharding.torchrec_private import StockBags, StockSequences, set_optimizer
from trainobs.fae.sharding.write_back import (
    BackingShard,
    Link,
    WriteBack,
    backing_shards,
    rate_of,
    rows_in,
)


@dataclass
class SentLookups:
    """Hot lookups that were sent to the ranks which have the rows."""

    context: Any  # of the forward pass
    received: Any  # lookups of all ranks in the rows of this one

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the memory until the stream is done with it."""
        self.context.record_stream(stream)
        self.received.record_stream(stream)


class Partition:
    """Hot rows of which every rank has those that come from its shards.

    Args:
        infos: of the collection's tables; at least one is among `overlaid_tables`.
        outputs: feature and table of each embedding, in the order of the collection's output.
        profile: which rows are hot.
        shards: what this rank has of the tables.
        env: the ranks.
        device: where the hot rows are to be.
        pools: whether lookups are pooled by bag.
        is_weighted: whether they have weights.

    Attributes:
        write_back: between the hot rows and this rank's shards.
    """

    def __init__(
        self,
        infos: Sequence[EmbeddingShardingInfo],
        outputs: Sequence[tuple[str, str]],
        profile: FAEProfile,
        shards: list[BackingShard],
        env: ShardingEnv,
        device: torch.device,
        pools: bool,
        is_weighted: bool,
    ) -> None:
        overlaid = overlaid_tables(profile)
        kind = EmbeddingBagConfig if pools else EmbeddingConfig
        tables = [
            _hot_table(info, profile, kind)
            for info in infos
            if info.embedding_config.name in overlaid
        ]
        self._outputs = outputs
        self._features = {feature for feature, _ in outputs}
        self._device = device
        self._pools = pools
        self._dims = {i.embedding_config.name: i.embedding_config.embedding_dim for i in infos}
        self._rows = {table.config.name: table.rows for table in tables}
        self._slots = SlotRows(self._rows, profile, device)
        hot = _sharded(tables, env, device, pools, is_weighted)
        self._collection = hot.module
        self._shards = shards
        self._hot_shards = backing_shards(hot)
        links = list(_partition_links(self._hot_shards, shards, profile))
        self.write_back = WriteBack(links, [])

    def gather(self, batch: SplitBatch) -> list[SentLookups]:
        """Send the hot lookups of a batch to the ranks that have the rows."""
        features, hot = batch.hot_features, batch.hot
        mine = [at for at, feature in enumerate(features) if feature in self._features]
        if len(mine) < len(features):  # the others are of another collection's tables
            features, hot = tuple(features[at] for at in mine), permuted(hot, mine)
        whole = KeyedJaggedTensor(
            keys=list(features),
            values=self._slots.lookup(hot, features),
            weights=hot.weights_or_none(),
            lengths=hot.lengths(),
            stride=hot.stride(),
            length_per_key=hot.length_per_key(),
        )
        context = self._collection.create_context()
        return [SentLookups(context, self._collection.input_dist(context, whole).wait().wait())]

    def lookup(self, lookups: list[SentLookups], batch_number: int, input_count: int) -> Tensor:
        """The embeddings, as `Replicas.lookup` gives them."""
        for shard in self._hot_shards:
            shard.kernel.set_learning_rate(rate_of({shard.table}, self._shards))
        (sent,) = lookups
        found = self._collection.compute_and_output_dist(sent.context, sent.received)
        if self._pools:
            return torch.cat(
                [
                    found[feature]
                    if table in self._rows
                    else torch.zeros(input_count, self._dims[table], device=self._device)
                    for feature, table in self._outputs
                ],
                dim=1,
            )
        return torch.cat(
            [found[feature].values() for feature, table in self._outputs if table in self._rows]
        )


class _HotTable(NamedTuple):
    """The hot rows of a table, as a table: its config and plan, and the row of each slot."""

    config: BaseEmbeddingConfig
    sharding: ParameterSharding
    info: EmbeddingShardingInfo  # of the table they come from
    rows: Tensor


def _hot_table(
    info: EmbeddingShardingInfo, profile: FAEProfile, kind: type[BaseEmbeddingConfig]
) -> _HotTable:
    """A table with a block of rows, all of one size, for the hot rows of each shard's rows."""
    table = info.embedding_config
    spec: Any = info.param_sharding.sharding_spec
    columns: dict[int, list[ShardMetadata]] = {}
    for shard in sorted(spec.shards, key=lambda shard: shard.shard_offsets[0]):
        columns.setdefault(shard.shard_offsets[1], []).append(shard)
    starts = [shard.shard_offsets[0] for shard in next(iter(columns.values()))]
    hot_ids = torch.from_numpy(profile.table(table.name).hot_ids)
    block = torch.bucketize(hot_ids, torch.tensor(starts), right=True) - 1
    counts = torch.bincount(block, minlength=len(starts))
    size = max(1, int(counts.max()))
    firsts = torch.cumsum(counts, 0) - counts
    rows = block * size + torch.arange(len(hot_ids)) - firsts[block]
    config = kind(
        name=table.name,
        num_embeddings=len(starts) * size,
        embedding_dim=table.embedding_dim,
        feature_names=list(table.feature_names),
        data_type=table.data_type,
    )
    sharding = copy.copy(info.param_sharding)
    sharding.compute_kernel = EmbeddingComputeKernel.FUSED.value
    sharding.sharding_spec = EnumerableShardingSpec(
        [
            dataclasses.replace(
                shard,
                shard_offsets=[number * size, column],
                shard_sizes=[size, shard.shard_sizes[1]],
            )
            for column, shards in columns.items()
            for number, shard in enumerate(shards)
        ]
    )
    return _HotTable(config, sharding, info, rows)


def _sharded(
    tables: list[_HotTable], env: ShardingEnv, device: torch.device, pools: bool, is_weighted: bool
) -> StockSequences:
    """The hot tables as a sharded collection, trained as the tables they come from."""
    configs: Any = [table.config for table in tables]
    meta = torch.device("meta")
    whole: Any
    if pools:
        whole = EmbeddingBagCollection(tables=configs, is_weighted=is_weighted, device=meta)
        modules = whole.embedding_bags
    else:
        whole = EmbeddingCollection(tables=configs, device=meta)
        modules = whole.embeddings
    for table in tables:
        set_optimizer(modules[table.config.name].weight, optimizer_settings(table.info))
    plan = {table.config.name: table.sharding for table in tables}
    return (StockBags if pools else StockSequences)(whole, plan, env, device=device)


def _partition_links(
    hot_shards: list[BackingShard], shards: list[BackingShard], profile: FAEProfile
) -> Iterator[Link]:
    """Each shard of a table with the shard of its hot rows, which is on this rank too."""
    kept = {shard.table for shard in hot_shards}
    for shard in shards:
        _, rows = rows_in(shard, profile)
        if shard.table not in kept or not len(rows):
            continue
        hot, cold = (  # in the order of their rows, which is the same
            sorted(
                (s for s in of if (s.table, s.column) == (shard.table, shard.column)),
                key=lambda s: s.row,
            )
            for of in (hot_shards, shards)
        )
        mine = hot[[s.row for s in cold].index(shard.row)]
        yield Link(mine.tensors, slice(0, len(rows)), shard, rows)
