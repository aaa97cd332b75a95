"""Hot rows split over the ranks: each keeps those of the shards that it has, and serves all ranks.

They are a sharded collection of their own, planned like the tables they come from, so that a hot
row is on the device of the rank that has it in its table. What moves between the two stays on one
rank. A lookup costs the device links what TorchRec's lookups cost, and no exchange of updates.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embedding_sharding import EmbeddingShardingInfo
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
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
from trainobs.fae.shard.batch import SplitBatch
from trainobs.fae.shard.layout import OPTIMIZER_SETTINGS
from trainobs.fae.shard.translate import Translation
from trainobs.fae.shard.write_back import (
    BackingShard,
    Link,
    WriteBack,
    backing_shards,
    rate_of,
    rows_in,
)


@dataclass
class SentLookups:
    """Hot lookups that are with the ranks which have the rows.

    Attributes:
        context: of the forward pass.
        received: lookups of all ranks in the rows of this one.
    """

    context: Any
    received: Any

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the memory until the stream is done with it."""
        self.context.record_stream(stream)
        self.received.record_stream(stream)


class Partition:
    """Hot rows of which every rank has those that come from its shards.

    Args:
        infos: of the collection's tables.
        outputs: feature and table of each embedding, in the order of the collection's output.
        profile: which rows are hot.
        shards: what this rank has of the tables.
        env: the ranks.
        device: where the hot rows are to be.
        is_weighted: whether lookups have weights.
    """

    _config: type[BaseEmbeddingConfig] = EmbeddingBagConfig

    def __init__(
        self,
        infos: Iterable[EmbeddingShardingInfo],
        outputs: list[tuple[str, str]],
        profile: FAEProfile,
        shards: list[BackingShard],
        env: ShardingEnv,
        device: torch.device,
        is_weighted: bool,
    ) -> None:
        infos, overlaid = list(infos), overlaid_tables(profile)
        tables = [
            _hot_table(info, profile, self._config)
            for info in infos
            if info.embedding_config.name in overlaid
        ]
        self._outputs = outputs
        self._features = {feature for feature, _ in outputs}
        self._device = device
        self._dims = {i.embedding_config.name: i.embedding_config.embedding_dim for i in infos}
        self._rows = {table.config.name: table.rows for table in tables}
        self._translation = Translation(self._rows, profile, device)
        self._collection = self._shard(tables, env, device, is_weighted)
        self._shards = shards
        self._hot_shards = backing_shards(self._collection._lookups)
        self.write_back = WriteBack(list(_links(self._hot_shards, shards, profile)), shards, [])

    def gather(self, batch: SplitBatch) -> list[SentLookups]:
        """Send the hot lookups to where their rows are."""
        features, hot = batch.hot_features, batch.hot
        mine = [at for at, feature in enumerate(features) if feature in self._features]
        if len(mine) < len(features):  # the others are of another collection's tables
            features, hot = tuple(features[at] for at in mine), permuted(hot, mine)
        whole = KeyedJaggedTensor(
            keys=list(features),
            values=self._translation.of(hot, features),
            weights=hot.weights_or_none(),
            lengths=hot.lengths(),
            stride=hot.stride(),
            length_per_key=hot.length_per_key(),
        )
        context = self._collection.create_context()
        return [SentLookups(context, self._collection.input_dist(context, whole).wait().wait())]

    def lookup(self, lookups: list[SentLookups], batch_number: int, input_count: int) -> Tensor:
        """See `HotRows`."""
        for shard in self._hot_shards:
            shard.kernel.set_learning_rate(rate_of({shard.table}, self._shards))
        sent = lookups[0]
        found = self._collection.compute_and_output_dist(sent.context, sent.received)
        return self._assemble(found, input_count)

    def _shard(
        self, tables: list[_HotTable], env: ShardingEnv, device: torch.device, is_weighted: bool
    ) -> Any:
        """The hot tables as a sharded collection, trained as the tables they come from."""
        collection = EmbeddingBagCollection(
            tables=[table.config for table in tables],
            is_weighted=is_weighted,
            device=torch.device("meta"),
        )
        plan = _planned(tables, collection.embedding_bags)
        return ShardedEmbeddingBagCollection(collection, plan, env, device=device)

    def _assemble(self, found: Any, input_count: int) -> Tensor:
        return torch.cat(
            [
                found[feature]
                if table in self._rows
                else torch.zeros(input_count, self._dims[table], device=self._device)
                for feature, table in self._outputs
            ],
            dim=1,
        )


class SequencePartition(Partition):
    """The same of a collection that gives an embedding for each lookup."""

    _config = EmbeddingConfig

    def _shard(
        self, tables: list[_HotTable], env: ShardingEnv, device: torch.device, is_weighted: bool
    ) -> Any:
        collection = EmbeddingCollection(
            tables=[table.config for table in tables], device=torch.device("meta")
        )
        plan = _planned(tables, collection.embeddings)
        return ShardedEmbeddingCollection(collection, plan, env, device=device)

    def _assemble(self, found: Any, input_count: int) -> Tensor:
        outputs = [
            found[feature].values() for feature, table in self._outputs if table in self._rows
        ]
        return torch.cat(outputs) if outputs else torch.zeros(0, 1, device=self._device)


@dataclass(frozen=True)
class _HotTable:
    """The hot rows of a table, as a table.

    Attributes:
        config: of it.
        sharding: the plan.
        info: of the table they come from.
        rows: int64, row of each slot.
    """

    config: BaseEmbeddingConfig
    sharding: ParameterSharding
    info: EmbeddingShardingInfo
    rows: Tensor


def _hot_table(
    info: EmbeddingShardingInfo, profile: FAEProfile, kind: type[BaseEmbeddingConfig]
) -> _HotTable:
    """Give each block of the table's rows a block, all of one size, for its hot rows."""
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


def _planned(tables: list[_HotTable], modules: nn.ModuleDict) -> dict[str, ParameterSharding]:
    """The plan; each module's weights are given the optimizer of the table it comes from."""
    for table in tables:
        parameter: Any = modules[table.config.name].weight
        given = table.info.fused_params or {}
        settings = {name: given[name] for name in OPTIMIZER_SETTINGS if name in given}
        parameter._optimizer_classes, parameter._optimizer_kwargs = [None], [settings]
    return {table.config.name: table.sharding for table in tables}


def _links(
    hot_shards: list[BackingShard], shards: list[BackingShard], profile: FAEProfile
) -> Iterator[Link]:
    """Each shard of a table with the shard of its hot rows, which is on this rank too."""
    for shard in shards:
        _, rows = rows_in(shard, profile)
        if not len(rows):
            continue
        mine = [s for s in hot_shards if (s.table, s.column) == (shard.table, shard.column)]
        # in the order of their rows, as the shards of the table are
        place = sorted(
            s.row for s in shards if (s.table, s.column) == (shard.table, shard.column)
        ).index(shard.row)
        hot = sorted(mine, key=lambda s: s.row)[place]
        yield Link(hot.tensors, slice(0, len(rows)), shard, rows)
