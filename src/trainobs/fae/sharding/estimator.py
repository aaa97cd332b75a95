"""What hot rows cost and spare, for TorchRec's planner, table by table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torchrec.distributed.planner.constants import kernel_bw_lookup
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import (
    EmbeddingPerfEstimator,
    EmbeddingStorageEstimator,
)
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    Shard,
    ShardEstimator,
    ShardingOption,
    Topology,
)
from torchrec.distributed.types import ShardingPlan

from trainobs.fae.profile.arguments import check_profile
from trainobs.fae.profile.predictions import required
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.mode import Mode, check_mode

_HOST = "fused_uvm"
"""The kernel whose tables have hot rows: others are on the device, or have a cache there."""


class HotRowEnumerator(EmbeddingEnumerator):  # type: ignore[misc]  # TorchRec has no types
    """Lists the ways to shard each table, `fused_uvm` with the table's hot rows.

        planner = EmbeddingShardingPlanner(
            topology, enumerator=HotRowEnumerator(profile, topology, batch_size=8192)
        )
        plan = planner.collective_plan(model, [FAEEmbeddingBagCollectionSharder(profile)], group)
        profile = planned_profile(profile, plan)

    So the planner weighs, for each table, its hot rows against all of it on the device, and against
    a cache. In mode "partitioned" a shard takes what its hot rows take. In other modes each device
    has those of all tables: give the planner a `HotRowReservation` as well.

    Args:
        profile: the hot rows; with what is expected of them.
        topology: the devices.
        batch_size: inputs of a rank's batch.
        constraints: of tables.
        mode: of the sharder.

    Raises:
        FAEError: the profile has no predictions.
        SettingError: there is no such mode; "auto" is none before there is a plan.
    """

    def __init__(
        self,
        profile: FAEProfile,
        topology: Topology,
        batch_size: int,
        constraints: Mapping[str, ParameterConstraints] | None = None,
        mode: Mode = "overlay",
    ) -> None:
        check_mode(mode, "cannot tell the planner what hot rows take")
        by_shard = mode == "partitioned"
        estimators = [
            EmbeddingPerfEstimator(topology, constraints),
            EmbeddingStorageEstimator(topology, constraints),
            _HotRowEstimator(topology, constraints, profile, by_shard),
        ]
        super().__init__(topology, batch_size, constraints, estimators)


class _HotRowEstimator(ShardEstimator):  # type: ignore[misc]
    """Changes the estimates of options that have hot rows.

    Args:
        topology: the devices.
        constraints: of tables; not used here.
        profile: the hot rows.
        by_shard: whether a shard's device has its hot rows, and no others.
    """

    def __init__(
        self,
        topology: Topology,
        constraints: Mapping[str, ParameterConstraints] | None,
        profile: FAEProfile,
        by_shard: bool,
    ) -> None:
        failed = "cannot tell the planner what hot rows serve"
        self._predictions = required(check_profile(profile).predictions, failed)
        self._profile = profile
        self._overlaid = profile.overlaid
        self._by_shard = by_shard
        self._device_share = _bandwidth(topology, _HOST) / _bandwidth(topology, "fused")

    def estimate(self, sharding_options: list[ShardingOption], sharder_data_map: Any) -> None:
        """Change what the estimators before this one said."""
        for option in sharding_options:
            if option.compute_kernel == _HOST and option.name in self._overlaid:
                self._estimate(option)

    def _estimate(self, option: ShardingOption) -> None:
        hot = np.nan_to_num(self._predictions.tables[option.name].hot_lookup_ratio.value)
        left = 1 - hot + hot * self._device_share
        rows = max((self._hot_rows(option, shard) for shard in option.shards), default=0)
        for shard in option.shards:
            shard.perf = dataclasses.replace(
                shard.perf,
                fwd_compute=shard.perf.fwd_compute * left,
                bwd_compute=shard.perf.bwd_compute * left,
            )
            if self._by_shard:
                hbm = shard.storage.hbm + self._bytes_of(option, shard, max(1, rows))
                shard.storage = dataclasses.replace(shard.storage, hbm=hbm)

    def _hot_rows(self, option: ShardingOption, shard: Shard) -> int:
        first = shard.offset[0]
        hot_ids = self._profile.table(option.name).hot_ids
        begin, end = np.searchsorted(hot_ids, [first, first + shard.size[0]])
        return int(end - begin)

    def _bytes_of(self, option: ShardingOption, shard: Shard, rows: int) -> int:
        """What hot rows take as wide as a shard: as many as its table's fullest shard has."""
        table = self._profile.table(option.name)
        columns: int = shard.size[1]
        return -(-rows * table.row_bytes * columns // table.dim)


def planned_profile(profile: FAEProfile, plan: ShardingPlan) -> FAEProfile:
    """The profile with the hot rows that a plan has a use for.

    Tables that the plan puts on the device, or behind a cache, keep no hot rows apart. Their
    lookups are cold, and inputs with any of them no longer train in pure batches.

    Args:
        profile: that the plan was made with.
        plan: of a planner that has a `HotRowEnumerator`.
    """
    kernels = dict(_kernels(plan))
    given_up = [table.name for table in profile.tables if kernels.get(table.name) != _HOST]
    tables = tuple(
        dataclasses.replace(table, hot_ids=table.hot_ids[:0]) if table.name in given_up else table
        for table in profile.tables
    )
    predictions = profile.predictions and profile.predictions.without(given_up)
    return FAEProfile(tables, profile.budget_bytes, predictions, profile.made)


def _kernels(plan: ShardingPlan) -> Iterable[tuple[str, str]]:
    """The kernel of each table; of one in a host's memory that which has hot rows."""
    for module in plan.plan.values():
        for name, sharding in module.items():
            shards = getattr(sharding.sharding_spec, "shards", ())
            on_hosts = [shard.placement.device().type == "cpu" for shard in shards]
            yield name, _HOST if any(on_hosts) else sharding.compute_kernel


def _bandwidth(topology: Topology, kernel: str) -> float:
    """Bytes a millisecond, as TorchRec's planner has it."""
    found: float | None = kernel_bw_lookup(
        "cuda",
        kernel,
        topology.hbm_mem_bw,
        topology.ddr_mem_bw,
        topology.hbm_to_ddr_mem_bw,
    )
    assert found is not None
    return found
