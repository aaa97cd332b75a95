"""TorchRec's own planner, which weighs hot rows table by table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.planner.types import ShardingOption
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from tests.fae.skewed import kjt, power_law, tables
from trainobs.core.errors import FAEError, SettingError
from trainobs.fae import (
    FAEEmbeddingBagCollectionSharder,
    FAEProfile,
    HotRowEnumerator,
    HotRowReservation,
    TableProfile,
    calibrate,
    planned_profile,
)

ROWS = (40_000, 40_000)
KEYS = ("skewed", "flat")
DIM = 32
TABLE_BYTES = ROWS[0] * (DIM + 1) * 4
BATCH = 512
LINK_SHARE = 32 / 10 / 897  # TorchRec's figures: bytes over the link, and of the device's memory


@pytest.fixture(scope="module")
def profile() -> FAEProfile:
    random = np.random.default_rng(0)
    data = np.stack([power_law(random, ROWS[0], 60_000), random.integers(0, ROWS[1], 60_000)])
    given = tables(ROWS, KEYS, dim=DIM)
    return calibrate([kjt(data, KEYS)], given, "1MB", margin=0, progress=False)


def test_hot_rows_spare_the_link_what_they_serve(profile: FAEProfile) -> None:
    stock, hot = (options(profile, mode) for mode in (None, "overlay"))
    assert profile.predictions is not None
    for (name, kernel), option in hot.items():
        (shard,), (plain,) = option.shards, stock[name, kernel].shards
        ratio = profile.predictions.tables[name].hot_lookup_ratio.value
        left = 1 - ratio + ratio * LINK_SHARE if kernel == "fused_uvm" else 1
        assert shard.perf.fwd_compute == pytest.approx(plain.perf.fwd_compute * left)
        assert shard.perf.bwd_compute == pytest.approx(plain.perf.bwd_compute * left)
        assert shard.perf.fwd_comms == plain.perf.fwd_comms
        assert shard.storage == plain.storage  # a HotRowReservation has room for all


def test_in_mode_partitioned_a_shard_takes_what_its_hot_rows_take(profile: FAEProfile) -> None:
    for kind, ranks in (("table_wise", 1), ("row_wise", 2), ("column_wise", 2)):
        stock, hot = (options(profile, mode, kind, ranks) for mode in (None, "partitioned"))
        for name in ("t_skewed", "t_flat"):
            taken = [
                shard.storage.hbm - plain.storage.hbm
                for shard, plain in zip(
                    hot[name, "fused_uvm"].shards, stock[name, "fused_uvm"].shards, strict=True
                )
            ]
            table = profile.table(name)
            fullest = max(np.sum(table.hot_ids < ROWS[0] / 2), np.sum(table.hot_ids >= ROWS[0] / 2))
            rows = ranks * fullest if kind == "row_wise" else len(table.hot_ids)
            assert sum(taken) == pytest.approx(rows * table.row_bytes, abs=2)
            assert len(taken) == ranks
            same = [shard.storage.hbm for shard in hot[name, "fused"].shards]
            assert same == [shard.storage.hbm for shard in stock[name, "fused"].shards]


def test_the_planner_gives_the_device_to_the_table_that_hot_rows_serve_less(
    profile: FAEProfile,
) -> None:
    plan = planned(profile)
    for found in (plan, planned(profile, KEYS[::-1])):  # not by the order of the tables
        assert kernels(found) == {"t_skewed": "fused_uvm", "t_flat": "fused"}
    left = planned_profile(profile, plan)
    assert np.array_equal(left.table("t_skewed").hot_ids, profile.table("t_skewed").hot_ids)
    assert not len(left.table("t_flat").hot_ids)
    assert left.predictions is not None
    given = profile.predictions
    assert given is not None
    assert left.predictions.tables["t_flat"].hot_lookup_ratio == (0, 0, 0)
    kept = given.tables["t_skewed"]
    assert left.predictions.tables["t_skewed"].hot_lookup_ratio == kept.hot_lookup_ratio
    both = left.predictions.hot_lookup_ratio.value
    assert both == pytest.approx(kept.hot_lookup_ratio.value / 2)  # as many lookups of each
    assert left.predictions.all_hot_ratio.value == 0
    assert "unknown of 256 B per input" in left.summary()
    HotRowEnumerator(left, topology(), batch_size=BATCH)


def test_what_hot_rows_of_tables_on_the_device_would_take_is_free_when_it_plans_again(
    profile: FAEProfile,
) -> None:
    devices = topology(table_count=2 + 1.5 * profile.hot_bytes / TABLE_BYTES)
    devices_less = topology(table_count=1.99 + 0.5 * profile.hot_bytes / TABLE_BYTES)

    def plan(given: FAEProfile, on: Topology) -> dict[str, str]:
        planner = EmbeddingShardingPlanner(
            topology=on,
            enumerator=HotRowEnumerator(given, on, BATCH, constraints("table_wise")),
            storage_reservation=HotRowReservation(given, percentage=0.0),
            batch_size=1,
        )
        found = planner.plan(model(), [FAEEmbeddingBagCollectionSharder(given)])
        kept.append(planned_profile(given, found))
        return kernels(found)

    kept: list[FAEProfile] = []
    assert "fused_uvm" not in plan(profile, devices).values()
    assert kept[-1].hot_bytes == 0
    first = plan(profile, devices_less)
    assert sorted(first.values()) == ["fused", "fused_uvm"]
    assert 0 < kept[-1].hot_bytes < profile.hot_bytes
    assert plan(kept[-1], devices_less)["t_flat"] == "fused"


def test_dense_parameters_and_batches_are_reserved_as_torchrec_reserves_them(
    profile: FAEProfile,
) -> None:
    net = torch.nn.Sequential(model(), torch.nn.Linear(1000, 1000))
    sharders = [FAEEmbeddingBagCollectionSharder(profile)]
    with pytest.warns(FutureWarning):
        stock = HeuristicalStorageReservation(percentage=0.15)
    room = [
        reservation.reserve(topology(table_count=20), BATCH, net, sharders).devices[0].storage.hbm
        for reservation in (stock, HotRowReservation(profile))
    ]
    bitmap = room[0] - room[1] - profile.hot_bytes
    assert 0.25 * sum(ROWS) < bitmap < 0.4 * sum(ROWS)


def test_a_profile_keeps_its_hot_rows_where_all_is_in_the_memory_of_hosts(
    profile: FAEProfile,
) -> None:
    hosts = Topology(world_size=1, compute_device="cpu", ddr_cap=1 << 30)
    plan = EmbeddingShardingPlanner(topology=hosts, batch_size=BATCH).plan(
        model(), [FAEEmbeddingBagCollectionSharder(profile)]
    )
    assert planned_profile(profile, plan).fingerprint == profile.fingerprint


def test_in_mode_partitioned_all_shards_take_what_the_fullest_does() -> None:
    rows = np.arange(100)  # all in the first half
    base = calibrated(rows)
    stock, hot = (options(base, mode, "row_wise", 2) for mode in (None, "partitioned"))
    taken = [
        shard.storage.hbm - plain.storage.hbm
        for shard, plain in zip(
            hot["t_skewed", "fused_uvm"].shards, stock["t_skewed", "fused_uvm"].shards, strict=True
        )
    ]
    assert taken == [100 * (DIM + 1) * 4] * 2


def calibrated(rows: np.ndarray) -> FAEProfile:
    """A profile with these hot rows in the first table."""
    random = np.random.default_rng(0)
    data = np.stack([random.choice(rows, 4000), random.integers(0, ROWS[1], 4000)])
    given = tables(ROWS, KEYS, dim=DIM)
    return calibrate([kjt(data, KEYS)], given, len(rows) * (DIM + 1) * 4, margin=0, progress=False)


@pytest.mark.parametrize("mode", ["auto", "nonsense"])
def test_a_mode_that_there_is_not_is_refused(profile: FAEProfile, mode: Any) -> None:
    with pytest.raises(SettingError, match="give one of overlay, paper, partitioned"):
        HotRowEnumerator(profile, topology(), BATCH, mode=mode)
    with pytest.raises(SettingError, match="give one of overlay, paper, partitioned"):
        HotRowReservation(profile, mode=mode)


def test_without_hot_rows_both_tables_are_alike_to_it(profile: FAEProfile) -> None:
    both = {name: option.total_perf for (name, _), option in options(profile, None).items()}
    assert both["t_skewed"] == both["t_flat"]


def test_a_profile_that_was_not_calibrated_is_refused() -> None:
    given = FAEProfile((TableProfile("t", 10, 4, ("f",), np.array([1]), 20),), 100)
    with pytest.raises(FAEError, match="cannot tell the planner what hot rows serve"):
        HotRowEnumerator(given, topology(), batch_size=BATCH)


def topology(ranks: int = 1, table_count: float = 1.5) -> Topology:
    """Devices that have room for so many tables together."""
    room = int(table_count * TABLE_BYTES / ranks)
    return Topology(
        world_size=ranks,
        local_world_size=ranks,
        compute_device="cuda",
        hbm_cap=room,
        ddr_cap=1 << 30,
    )


def constraints(kind: str) -> dict[str, ParameterConstraints]:
    allowed = ParameterConstraints(
        sharding_types=[kind], compute_kernels=["fused", "fused_uvm"], min_partition=DIM // 2
    )
    return {f"t_{key}": allowed for key in KEYS}


def model(keys: tuple[str, ...] = KEYS) -> torch.nn.Module:
    given = tables(ROWS, keys, dim=DIM)
    return torch.nn.Sequential(EmbeddingBagCollection(tables=given, device=torch.device("meta")))


def options(
    profile: FAEProfile, mode: Any, kind: str = "table_wise", ranks: int = 1
) -> dict[tuple[str, str], ShardingOption]:
    """By table and kernel; without hot rows where `mode` is None."""
    devices = topology(ranks)
    listing: Any = EmbeddingEnumerator(devices, BATCH, constraints(kind))
    if mode is not None:
        listing = HotRowEnumerator(profile, devices, BATCH, constraints(kind), mode)
    found = listing.enumerate(model(), [FAEEmbeddingBagCollectionSharder(profile)])
    return {(option.name, option.compute_kernel): option for option in found}


def planned(profile: FAEProfile, keys: tuple[str, ...] = KEYS) -> ShardingPlan:
    devices = topology()
    planner = EmbeddingShardingPlanner(
        topology=devices,
        enumerator=HotRowEnumerator(profile, devices, BATCH, constraints("table_wise")),
        batch_size=BATCH,
    )
    return planner.plan(model(keys), [FAEEmbeddingBagCollectionSharder(profile)])


def kernels(plan: ShardingPlan) -> dict[str, str]:
    (module,) = plan.plan.values()
    return {name: sharding.compute_kernel for name, sharding in module.items()}
