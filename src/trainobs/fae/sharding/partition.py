"""Hot rows split over the ranks: each keeps those of the shards that it has, and serves all ranks.

They are a sharded collection of their own, planned like the tables they come from, so that a hot
row is on the device of the rank that has it in its table. What moves between the two stays on one
rank. A lookup costs the device links what TorchRec's lookups cost, and no exchange of updates.
Pure batches go to that collection; lookups of mixed ones go to the tables' ranks, all in one
exchange (`owners`), but for a single rank, which sends nothing.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchrec.distributed.embedding_sharding import EmbeddingShardingInfo
from torchrec.distributed.embedding_types import EmbeddingComputeKernel, KJTList
from torchrec.distributed.types import (
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingEnv,
)
from torchrec.modules.embedding_configs import (
    BaseEmbeddingConfig,
    EmbeddingBagConfig,
    EmbeddingConfig,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from trainobs.core.errors import FAEError
from trainobs.fae.kjt.bitmap import HotBitmap
from trainobs.fae.kjt.jagged import permuted, with_values
from trainobs.fae.profile.model_tables import trained_row_bytes
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.batch import Process, SlotRows, SplitBatch
from trainobs.fae.sharding.bounds import BoundsCheck
from trainobs.fae.sharding.checks import optimizer_of
from trainobs.fae.sharding.layout import optimizer_settings
from trainobs.fae.sharding.owners import owners, serving
from trainobs.fae.sharding.planner import check_room, needed_bytes
from trainobs.fae.sharding.rates import LookupCounts, rate_of
from trainobs.fae.sharding.torchrec_private import (
    StockBags,
    StockSequences,
    counts_lookups,
    set_lookup_count,
    set_optimizer,
)
from trainobs.fae.sharding.write_back import (
    BackingShard,
    Link,
    WriteBack,
    backing_shards,
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
        infos: of the collection's tables; at least one is among `FAEProfile.overlaid`.
        outputs: feature and table of each embedding, in the order of the collection's output.
        profile: which rows are hot.
        shards: what this rank has of the tables.
        env: the ranks.
        device: where the hot rows are to be.
        pools: whether lookups are pooled by bag.
        is_weighted: whether they have weights.
        lookups: the lookup modules of the tables.
        bounds: what ids outside of their table are.

    Attributes:
        write_back: between the hot rows and this rank's shards.
        joins_mixed: whether hot lookups of mixed batches are sent with the others.
        own_bytes: that hot rows take on this rank, optimizer state included. A shard has room for
            as many as the shard of its table with most.

    Raises:
        FAEError: the device has no room, or plans of tables that share a feature part rows
            differently.
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
        lookups: Sequence[nn.Module],
        bounds: BoundsCheck,
    ) -> None:
        overlaid = profile.overlaid
        kind = EmbeddingBagConfig if pools else EmbeddingConfig
        served = [info for info in infos if info.embedding_config.name in overlaid]
        tables = [_hot_table(info, _starts(info, served), profile, kind) for info in served]
        names = Counter(
            feature for info in served for feature in info.embedding_config.feature_names
        )
        self._outputs = [  # TorchRec's name of each, and its table
            (f"{feature}@{table}" if names[feature] > 1 else feature, table)
            for feature, table in outputs
        ]
        self._features = {feature for feature, _ in outputs}
        self._device = device
        self._pools = pools
        self._dims = {i.embedding_config.name: i.embedding_config.embedding_dim for i in infos}
        self._rows = {table.config.name: table.rows for table in tables}
        self.own_bytes: int | None = sum(_bytes_on(env.rank, table) for table in tables)
        maps = needed_bytes(profile, self._rows, {}, "partitioned")
        check_room(self.own_bytes + maps, device)
        self._slots = SlotRows(self._rows, profile, device)
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices):  # all rows come from the tables, none is drawn
            hot = _sharded(tables, env, device, pools, is_weighted)
        self._collection = hot.module
        self.joins_mixed = env.world_size > 1
        self._owners = owners(lookups, hot.lookups, self._slots, bounds.takes_first, pools)
        self._shards = shards
        self._counts = LookupCounts(shards)
        hot_shards = backing_shards(hot)
        self._trained = {id(s.kernel): (s.kernel, set[str]()) for s in hot_shards}
        for shard in hot_shards:
            self._trained[id(shard.kernel)][1].add(shard.table)
        links = list(_partition_links(hot_shards, shards, profile, self._rows))
        self.write_back = WriteBack(links, [])

    def set_optimizer(self, settings: Mapping[str, float]) -> None:
        """Set what the optimizer was given in mid-training."""
        self._collection.fused_optimizer.update_hyper_parameters(settings)

    def gather(self, batch: SplitBatch) -> list[SentLookups]:
        """Send the hot lookups of a batch to the ranks that have the rows."""
        features, hot = batch.hot_features, batch.hot
        mine = [at for at, feature in enumerate(features) if feature in self._features]
        if len(mine) < len(features):  # the others are of another collection's tables
            features, hot = tuple(features[at] for at in mine), permuted(hot, mine)
        whole = with_values(hot, self._slots.lookup(hot, features), features)
        context = self._collection.create_context()
        return [SentLookups(context, self._collection.input_dist(context, whole).wait().wait())]

    def processed(self, lookups: list[SentLookups], process: Process) -> list[SentLookups]:
        """Lookups, as `gather` gave them, with the weights that a feature processor has."""
        return [SentLookups(sent.context, process(sent.received)) for sent in lookups]

    def lookup(
        self, lookups: list[SentLookups], batch_number: int, input_count: int
    ) -> list[Tensor]:
        """The embeddings, as `Replicas.lookup` gives them."""
        self._follow_tables()
        (sent,) = lookups
        found = self._collection.compute_and_output_dist(sent.context, sent.received)
        if self._pools:
            pooled = [
                found[name]
                if table in self._rows
                else torch.zeros(input_count, self._dims[table], device=self._device)
                for name, table in self._outputs
            ]
            return [torch.cat(pooled, dim=1)]
        return [
            found[name].values()
            if table in self._rows
            else torch.zeros(0, self._dims[table], device=self._device)
            for name, table in self._outputs
        ]

    def serving(
        self, bitmap: HotBitmap, looked_up: Callable[[Tensor], None]
    ) -> AbstractContextManager[None]:
        """Have lookups of the tables serve hot lookups too, which came to this rank with them."""
        self._follow_tables()
        return serving(self._owners, bitmap, looked_up)

    def cold(self, modules: Iterable[nn.Module], received: KJTList, bitmap: HotBitmap) -> KJTList:
        """The cold ones of lookups that came to this rank, for each lookup module."""
        owned = {id(owner.tables): owner for owner in self._owners}
        parts = zip(modules, received, strict=True)
        return KJTList(
            [
                owned[id(module)].part(whole, bitmap).cold if id(module) in owned else whole
                for module, whole in parts
            ]
        )

    def _follow_tables(self) -> None:
        """Train hot rows at the rates of their tables, and after as many lookups."""
        count = self._counts.now()
        for kernel, tables in self._trained.values():
            kernel.set_learning_rate(rate_of(tables, self._shards))
            if counts_lookups(kernel):
                set_lookup_count(kernel, int(count))


class _HotTable(NamedTuple):
    """The hot rows of a table, as a table: its config and plan, and the row of each slot."""

    config: BaseEmbeddingConfig
    sharding: ParameterSharding
    info: EmbeddingShardingInfo  # of the table they come from
    rows: Tensor


def _bytes_on(rank: int, table: _HotTable) -> int:
    """What a rank's shards of a table of hot rows take, optimizer state included."""
    spec: Any = table.sharding.sharding_spec
    total = 0
    for shard in spec.shards:
        if shard.placement.rank() == rank:
            rows, columns = shard.shard_sizes
            config = dataclasses.replace(table.config, embedding_dim=columns)
            (row_bytes,) = trained_row_bytes([(config, optimizer_of(table.info))]).values()
            total += rows * row_bytes
    return total


def _row_starts(info: EmbeddingShardingInfo) -> list[int]:
    """First row of each run of rows that the plan makes of a table."""
    spec: Any = info.param_sharding.sharding_spec
    return sorted({shard.shard_offsets[0] for shard in spec.shards})


def _starts(info: EmbeddingShardingInfo, served: Sequence[EmbeddingShardingInfo]) -> list[int]:
    """First row of each block of a table, the same for tables that share a feature.

    Raises:
        FAEError: their plans split rows at places of which none is a refinement of the others.
    """
    config = info.embedding_config
    features = set(config.feature_names)
    found, size = {0}, 0
    while len(features) > size:  # with the tables that these share a feature with
        size = len(features)
        for other in served:
            if features.intersection(other.embedding_config.feature_names):
                features.update(other.embedding_config.feature_names)
                found.update(_row_starts(other))
    starts = sorted(found)
    blocks = [starts.index(start) for start in _row_starts(info)] + [len(starts)]
    if len({end - begin for begin, end in itertools.pairwise(blocks)}) > 1:
        raise FAEError(
            f"cannot part the hot rows of table {config.name!r} among ranks",
            f"rows split at {starts[:8]}, and a table that shares a feature split elsewhere",
            "plan tables that share a feature alike, or take mode 'overlay'",
        )
    return starts


def _hot_table(
    info: EmbeddingShardingInfo,
    starts: list[int],
    profile: FAEProfile,
    kind: type[BaseEmbeddingConfig],
) -> _HotTable:
    """A table with a block of rows, all of one size, for the hot rows from each start on."""
    table = info.embedding_config
    spec: Any = info.param_sharding.sharding_spec
    hot_ids = torch.from_numpy(profile.table(table.name).hot_ids)
    block = torch.bucketize(hot_ids, torch.tensor(starts), right=True) - 1
    counts = torch.bincount(block, minlength=len(starts))
    size = max(1, int(counts.max()))
    firsts = torch.cumsum(counts, 0) - counts
    rows = block * size + torch.arange(len(hot_ids)) - firsts[block]
    blocks = len(starts) // len(_row_starts(info))  # of each shard
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
                shard_offsets=[starts.index(shard.shard_offsets[0]) * size, shard.shard_offsets[1]],
                shard_sizes=[blocks * size, shard.shard_sizes[1]],
            )
            for shard in spec.shards
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
    hot_shards: list[BackingShard],
    shards: list[BackingShard],
    profile: FAEProfile,
    hot_rows: Mapping[str, Tensor],
) -> Iterator[Link]:
    """Each shard of a table with the shard of its hot rows, which is on this rank too.

    `hot_rows` has the row of each slot of a table among its hot rows, without tables that have none
    apart.
    """
    for shard in shards:
        first, rows = rows_in(shard, profile)
        if shard.table not in hot_rows or not len(rows):
            continue
        hot, cold = (  # in the order of their rows, which is the same
            sorted(
                (s for s in of if (s.table, s.column) == (shard.table, shard.column)),
                key=lambda s: s.row,
            )
            for of in (hot_shards, shards)
        )
        mine = hot[[s.row for s in cold].index(shard.row)]
        places = hot_rows[shard.table][first : first + len(rows)] - mine.row
        ends = [*(torch.diff(places) != 1).nonzero().view(-1).add(1).tolist(), len(rows)]
        for begin, end in itertools.pairwise([0, *ends]):  # a run for each block
            start = int(places[begin])
            run = slice(start, start + end - begin)
            yield Link(mine.tensors, run, shard, rows[begin:end])
