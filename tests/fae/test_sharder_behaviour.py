"""What a step with hot rows does and does not do."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.planner.types import PlannerError
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.fae.batches import Batch, batches
from tests.fae.cases import Table, profile_of
from tests.fae.compared import difference
from tests.fae.parity import (
    SEQUENCES,
    build,
    fae_sharder,
    sharded_alone,
    sharded_by,
    stock_sharder,
    train,
)
from tests.fae.ranks import Ranks
from tests.fae.sharders import StockSharder
from tests.fae.small import case, fed
from trainobs.core.errors import FAEError
from trainobs.fae import HotRowReservation
from trainobs.fae.sharding import planner
from trainobs.fae.sharding.sharder import FAEEmbeddingBagCollectionSharder

SOON_S = 60
"""It is a second on a machine at rest; who waits for a collective waits for gloo's 30 minutes."""


@SEQUENCES
def test_a_pure_forward_makes_no_collective_and_no_host_lookup(
    pair: Ranks, sequences: bool
) -> None:
    for counts in pair.run(_count_of_steps, sequences):
        assert counts["pure"] == {"forward": 0, "barriers": 0, "lookups": 0}
        assert counts["mixed"]["forward"] > 0
        assert counts["mixed"]["barriers"] == 1
        assert counts["mixed"]["lookups"] == 2


def _count_of_steps(rank: int, sequences: bool) -> dict[str, dict[str, int]]:
    kinds = ("mixed", "pure", "pure", "mixed", "pure")
    one = case(world_size=2, kinds=kinds, sequences=sequences)
    model = build(one, fae_sharder(one, profile_of(one)))
    collection = model.module.collection
    lookups = []
    for lookup in collection._lookups:
        lookup.register_forward_hook(lambda *_: lookups.append(1))
    groups = {"forward": dist.group.WORLD, "barriers": collection._overlay.barrier._group}
    result = {}
    for kind, kjt in zip(one.kinds, fed(one, rank), strict=True):
        before = {name: _collectives(group) for name, group in groups.items()}
        lookups.clear()
        loss, _ = model(Batch(kjt))
        result[kind] = {name: _collectives(g) - before[name] for name, g in groups.items()}
        result[kind]["lookups"] = len(lookups)
        loss.backward()
        assert all(_collectives(group) > before[name] for name, group in groups.items())
    return result


def _collectives(group: dist.ProcessGroup | None) -> int:
    """How many a group has made."""
    assert group is not None
    return int(group._get_sequence_number_for_group())


@SEQUENCES
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_replicas_stay_equal_to_the_bit(pair: Ranks, optimizer: str, sequences: bool) -> None:
    one, other = pair.run(_replica, optimizer, sequences)
    assert one["after"] == other["after"]
    assert one["after"] != one["before"]


def _replica(rank: int, optimizer: str, sequences: bool) -> dict[str, list[bytes]]:
    kinds = ("mixed", "pure", "plain", "lone") * 3
    one = case("column_wise", 2, kinds=kinds, optimizer=optimizer, inputs=6, sequences=sequences)
    model = build(one, fae_sharder(one, profile_of(one)))
    overlay = model.module.collection._overlay
    overlay._catch_up(0)
    kernels = overlay.rows.kernels
    before = [tensor.numpy().tobytes() for kernel in kernels for tensor in kernel.tensors]
    train(one, model, fed(one, rank))
    after = [tensor.numpy().tobytes() for kernel in kernels for tensor in kernel.tensors]
    return {"before": before, "after": after}


@SEQUENCES
@pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
@pytest.mark.usefixtures("lone_rank")
def test_no_random_number_is_drawn_for_hot_rows(mode: str, sequences: bool) -> None:
    one = case(mode=mode, sequences=sequences)
    states = []
    for sharder in (stock_sharder(one), fae_sharder(one, profile_of(one))):
        build(one, sharder)
        states.append(torch.get_rng_state())  # from which what is sharded next has its weights
    assert torch.equal(*states)


@pytest.mark.parametrize("sharding", ["row_wise", "table_wise"])
@pytest.mark.parametrize("when", ["now", "next step"])
@pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
def test_ranks_that_disagree_are_told_soon(
    pair: Ranks, sharding: str, when: str, mode: str
) -> None:
    for message, seconds in pair.run(_disagree, sharding, when, mode):
        assert seconds < SOON_S
        assert "ranks train on batches of different kinds" in message
        assert "rank 0: forward of a mixed batch" in message
        place = "reading of hot rows from their tables"
        if mode == "partitioned":
            place = "forward of a pure batch"
        elif mode == "overlay" and when == "next step":
            place = "backward"
        assert f"rank 1: {place}" in message
        assert "pack on every rank" in message


def _disagree(rank: int, sharding: str, when: str, mode: str) -> tuple[str, float]:
    kind = "pure" if rank else "mixed"
    one = case(sharding, world_size=2, kinds=("mixed", kind) if when == "next step" else (kind,))
    group = dist.new_group([0, 1])  # of its own, since a collective on it stays half done
    collection = sharded_alone(one, ShardingEnv.from_process_group(group), mode)
    feed = fed(one, rank)
    begun = time.monotonic()
    try:
        for kjt in feed:
            collection(kjt).values().sum().backward()
    except FAEError as error:
        return str(error), time.monotonic() - begun
    return "nothing was said", 0.0


@pytest.mark.parametrize("mode", ["overlay", "partitioned"])
def test_ranks_that_disagree_do_not_wait_in_two_collections(pair: Ranks, mode: str) -> None:
    # the one in the forward of the first, the other in the backward of the last
    for message, seconds in pair.run(_disagree_in_two, mode):
        assert seconds < SOON_S
        assert "ranks train on batches of different kinds" in message


def _disagree_in_two(rank: int, mode: str) -> tuple[str, float]:
    one = case("row_wise", world_size=2, kinds=("mixed", "pure" if rank else "mixed"))
    group = dist.new_group([0, 1])
    env = ShardingEnv.from_process_group(group)
    first, second = (sharded_alone(one, env, mode) for _ in range(2))
    begun = time.monotonic()
    try:
        for kjt in fed(one, rank):
            (first(kjt).values() * second(kjt).values()).sum().backward()
    except FAEError as error:
        return str(error), time.monotonic() - begun
    return "nothing was said", 0.0


@SEQUENCES
@pytest.mark.parametrize("mode", ["overlay", "partitioned"])
@pytest.mark.parametrize("hot", [(1, 2), (1, 3)], ids=["alike", "other hot rows"])
def test_rows_of_two_tables_a_feature_are_hot_in_both_or_in_none(
    pair: Ranks, mode: str, sequences: bool, hot: tuple[int, ...]
) -> None:
    for (stock, fae), hot_lookups in pair.run(_two_tables_a_feature, mode, sequences, hot):
        assert len(set(stock)) == 3  # it trains
        assert stock == pytest.approx(fae)
        assert hot_lookups == (6 if hot == (1, 2) else 0)


def _two_tables_a_feature(
    rank: int, mode: str, sequences: bool, hot: tuple[int, ...]
) -> tuple[list[list[float]], int]:
    tables = tuple(
        Table(name, 20, 8, PoolingType.SUM, ("f0",), sharding, rows)
        for name, sharding, rows in (("a", "row_wise", (1, 2)), ("b", "table_wise", hot))
    )
    one = case(world_size=2, tables=tables, mode=mode, sequences=sequences)
    values = torch.tensor([1, 3 + rank, 2])
    kjt = KeyedJaggedTensor(["f0"], values, lengths=torch.tensor([2, 1]))
    losses: list[list[float]] = []
    for sharder in (stock_sharder(one), fae_sharder(one, profile_of(one))):
        collection = sharded_by(sharder, one, ShardingEnv.from_process_group(dist.group.WORLD))
        losses.append([])
        for _ in range(3):
            found = collection(kjt)
            parts = [found[key].values() if sequences else found[key] for key in ("f0@a", "f0@b")]
            loss = torch.cat(parts).pow(2).sum()
            loss.backward()
            losses[-1].append(float(loss))
    served: Any = collection
    return losses, served.served_by_hot_rows.totals().hot_lookup_count


@pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
def test_ranks_with_other_hot_rows_are_told(pair: Ranks, mode: str) -> None:
    for message in pair.run(_other_rows_on_a_rank, mode):
        assert "different profiles on the ranks" in message


def _other_rows_on_a_rank(rank: int, mode: str) -> str:
    one = case("row_wise", world_size=2, kinds=("plain",))
    if rank:  # as many, so that nothing else could notice
        one = replace(one, tables=(replace(one.tables[0], hot=tuple(range(10))), one.tables[1]))
    group = dist.new_group([0, 1])
    collection = sharded_alone(one, ShardingEnv.from_process_group(group), mode)
    try:
        collection(fed(replace(one, kinds=("pure",)) if mode == "paper" else one, rank)[0])
    except FAEError as error:
        return error.found
    return "nothing was said"


@pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
def test_a_refresh_on_one_rank_is_told_soon(pair: Ranks, mode: str) -> None:
    for message, seconds in pair.run(_refreshed_on_a_rank, mode):
        assert seconds < SOON_S
        assert "different profiles on the ranks" in message


def _refreshed_on_a_rank(rank: int, mode: str) -> tuple[str, float]:
    one = case("row_wise", world_size=2, kinds=("plain", "plain"))
    group = dist.new_group([0, 1])
    collection = sharded_alone(one, ShardingEnv.from_process_group(group), mode)
    others = replace(one, tables=(replace(one.tables[0], hot=(1, 2, 3)), one.tables[1]))
    begun = time.monotonic()
    try:
        for number, kjt in enumerate(fed(one, rank)):
            if number and not rank:
                collection.refresh(profile_of(others))
            collection(kjt).values().sum().backward()
    except FAEError as error:
        return str(error), time.monotonic() - begun
    return "nothing was said", 0.0


@pytest.mark.usefixtures("lone_rank")
@SEQUENCES
@pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
def test_other_rows_become_hot_between_epochs(mode: str, sequences: bool) -> None:
    assert _refresh(0, 1, mode, sequences) < 4e-6


@SEQUENCES
@pytest.mark.parametrize("mode", ["overlay", "partitioned"])
def test_other_rows_become_hot_on_all_ranks(pair: Ranks, mode: str, sequences: bool) -> None:
    assert max(pair.run(_refresh, 2, mode, sequences)) < 4e-6


def _refresh(rank: int, world_size: int, mode: str, sequences: bool) -> float:
    """An epoch with some hot rows, one with others, and one with none but a few of them."""
    kinds = ("mixed", "pure", "plain", "pure")
    one = case("column_wise", world_size, kinds=kinds, mode=mode, sequences=sequences)
    first, second = one.tables
    others = replace(
        one, tables=(replace(first, hot=(1, 2, 3)), replace(second, hot=tuple(range(5, 25))))
    )
    few = replace(one, tables=(replace(first, hot=()), replace(second, hot=(7,))))
    stock = build(one, stock_sharder(one))
    model = build(one, fae_sharder(one, profile_of(one)))
    worst = 0.0
    for epoch in (one, others, few, one):
        model.module.collection.refresh(profile_of(epoch))
        expected = train(one, stock, [kjt for _, kjt in batches(epoch, rank)])
        worst = max(worst, *difference(expected, train(one, model, fed(epoch, rank))).values())
    return worst


@pytest.mark.usefixtures("lone_rank")
def test_a_batch_on_its_way_during_a_refresh_is_refused() -> None:
    one = case()
    collection = build(one, FAEEmbeddingBagCollectionSharder(profile_of(one))).module.collection
    context = collection.create_context()
    sent = collection.input_dist(context, fed(one)[0]).wait().wait()
    collection.refresh(profile_of(one))
    with pytest.raises(FAEError, match="let the pipeline run empty"):
        collection.compute_and_output_dist(context, sent)


@pytest.mark.usefixtures("lone_rank")
@SEQUENCES
@pytest.mark.parametrize("kind", ["pure", "mixed"])
@pytest.mark.parametrize("mode", ["overlay", "partitioned"])
def test_a_batch_that_was_looked_up_before_a_refresh_is_not_trained(
    mode: str, kind: str, sequences: bool
) -> None:
    one = case(kinds=(kind,), mode=mode, sequences=sequences)
    model = build(one, fae_sharder(one, profile_of(one)))
    loss, _ = model(Batch(fed(one)[0]))
    model.module.collection.refresh(profile_of(one))
    with pytest.raises(FAEError, match="let the pipeline run empty, before a refresh"):
        loss.backward()


def test_the_planner_leaves_room_for_hot_rows() -> None:
    one = case(world_size=2)
    model = nn.Module()
    model.collection = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(
                name=t.name, num_embeddings=t.rows, embedding_dim=64, feature_names=list(t.features)
            )
            for t in one.tables
        ],
        device=torch.device("meta"),
    )
    table_bytes = 30 * 64 * 4
    profile = profile_of(one)
    sharder = FAEEmbeddingBagCollectionSharder(profile)

    def plan(room_bytes: int, reservation: object) -> object:
        topology = Topology(world_size=2, compute_device="cpu", ddr_cap=room_bytes)
        planner = EmbeddingShardingPlanner(
            topology=topology, batch_size=1, storage_reservation=reservation
        )
        return planner.plan(model, [sharder])

    with pytest.warns(FutureWarning):  # TorchRec's default, of which it warns itself
        stock = HeuristicalStorageReservation(percentage=0.15)
    room = next(r for r in range(table_bytes, 1 << 20, 256) if _can(plan, r, stock))
    with_hot = HotRowReservation(profile)
    assert not _can(plan, room, with_hot)
    # what the planner asks for is room / 0.85 for each byte, so this much more is enough
    assert _can(plan, room + profile.hot_bytes * 2, with_hot)
    with pytest.raises(FAEError, match="no room for the hot rows"):
        plan(profile.hot_bytes // 2, with_hot)


ADAGRAD = 2 * 8 * 4  # bytes of a row of 8 values with Adagrad's state; the profile has none


@pytest.mark.usefixtures("lone_rank")
def test_rows_that_take_more_than_the_profile_says_are_counted_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = replace(case(), optimizer="adagrad")
    profile = profile_of(one)
    rows = profile.hot_bytes // profile.tables[0].row_bytes
    for limit, is_told in ((rows * ADAGRAD, False), (rows * ADAGRAD - 1, True)):
        caplog.clear()
        logging.disable(logging.NOTSET)
        given = replace(profile, budget_bytes=limit)
        collection = build(one, fae_sharder(one, given)).module.collection
        logging.disable(logging.WARNING)
        assert collection.served_by_hot_rows.totals().hot_bytes == rows * ADAGRAD
        assert ("the hot rows take" in caplog.text) == is_told


def _can(plan: Callable[[int, object], object], room_bytes: int, reservation: object) -> bool:
    try:
        plan(room_bytes, reservation)
    except (PlannerError, FAEError):
        return False
    return True


@pytest.mark.usefixtures("lone_rank")
def test_outputs_come_in_the_order_that_a_setting_of_the_stock_sharder_asks_for() -> None:
    one = case()
    settings: Any = {"sharded_module_order_overwrite": ["table_wise", "row_wise"]}
    stock = build(one, StockSharder(**settings))
    fae = build(one, FAEEmbeddingBagCollectionSharder(profile_of(one), **settings))
    (_, kjt), *_ = batches(one, 0)
    for model in (stock, fae):
        assert model.module.collection(kjt).keys() == ["f1", "f2", "f0"]
    feed = [kjt for _, kjt in batches(one, 0)]
    expected = train(one, stock, feed)
    assert max(difference(expected, train(one, fae, fed(one))).values()) < 4e-6


def test_a_device_has_room_where_torch_keeps_memory_that_nobody_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, answer in (("mem_get_info", (10, 100)), ("memory_reserved", 70)):
        monkeypatch.setattr(torch.cuda, name, lambda _, answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 50)
    planner.check_room(30, torch.device("cuda"))
    with pytest.raises(FAEError, match="31 bytes of them, 30 bytes free on cuda"):
        planner.check_room(31, torch.device("cuda"))
