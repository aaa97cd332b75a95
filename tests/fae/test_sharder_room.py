"""What hot rows take on a rank: as much as is told, checked before, given back by a refresh."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.fae.batches import batches
from tests.fae.cases import profile_of
from tests.fae.compared import difference
from tests.fae.parity import build, fae_sharder, stock_sharder, train
from tests.fae.ranks import Ranks
from tests.fae.small import case, fed
from trainobs.core.errors import FAEError
from trainobs.fae.sharding import planner, sharded
from trainobs.fae.sharding.planner import needed_bytes

MODES = pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])


@pytest.mark.usefixtures("lone_rank")
@MODES
def test_room_is_checked_before_it_is_taken(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = case(mode=mode)
    monkeypatch.setattr(planner, "_host_bytes", lambda: 100)
    with pytest.raises(FAEError, match="no room for the hot rows\n.* 100 bytes free on cpu"):
        build(one, fae_sharder(one, profile_of(one)))


def test_a_rank_tells_what_its_part_takes_and_not_the_mean_of_all(pair: Ranks) -> None:
    for told, allocated in pair.run(_told_and_allocated):
        assert told == allocated


def _told_and_allocated(rank: int) -> tuple[int, int]:
    """Hot rows of the first table are all in the first of its two shards."""
    one = case("row_wise", 2, mode="partitioned")
    first, second = one.tables
    one = replace(one, tables=(replace(first, hot=tuple(range(10))), second))
    collection = build(one, fae_sharder(one, profile_of(one))).module.collection
    kernels = [kernel for kernel, _ in collection._overlay.rows._trained.values()]
    found = 0
    for kernel in kernels:
        found += sum(weights.nbytes for weights in kernel.split_embedding_weights())
        found += sum(state.nbytes for (state,) in kernel.split_optimizer_states())
    return collection.served_by_hot_rows.totals().hot_bytes, found


def test_maps_beside_the_rows_count_by_mode() -> None:
    profile = profile_of(case())
    hot = sum(len(table.hot_ids) for table in profile.tables)
    overlay, paper, maps = (
        needed_bytes(profile, {"t0", "t1"}, {}, mode)
        for mode in ("overlay", "paper", "partitioned")
    )
    assert paper - overlay == 8 * hot
    assert maps == paper - profile.hot_bytes + 8 * hot  # and where a slot is among hot rows


@pytest.mark.usefixtures("lone_rank")
@MODES
def test_a_refresh_gives_memory_back_before_it_takes_other(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = case(kinds=("mixed",) * 6, mode=mode)
    model = build(one, fae_sharder(one, profile_of(one)))
    train(one, model, fed(one))
    collection = model.module.collection
    rows: Any = collection._overlay.rows
    seen = [weakref.ref(kernel) for kernel in _kernels(rows)]  # which have the memory
    del rows
    alive = []

    def host_bytes() -> int:
        alive.append(sum(kernel() is not None for kernel in seen))
        return 1 << 30

    monkeypatch.setattr(planner, "_host_bytes", host_bytes)
    collection.refresh(profile_of(one))
    assert seen
    assert alive == [0]


def _kernels(rows: Any) -> list[Any]:
    """FBGEMM's, with hot rows."""
    if hasattr(rows, "kernels"):
        return [kernel._tables for kernel in rows.kernels]
    return [kernel for kernel, _ in rows._trained.values()]


@pytest.mark.usefixtures("lone_rank")
@MODES
def test_where_there_is_no_room_for_others_the_hot_rows_stay_as_they_were(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = case(kinds=("mixed", "pure") * 3, mode=mode)
    others = replace(one, tables=(replace(one.tables[0], hot=tuple(range(20))), one.tables[1]))
    stock, model = build(one, stock_sharder(one)), build(one, fae_sharder(one, profile_of(one)))
    feed = [kjt for _, kjt in batches(one, 0)]
    train(one, stock, feed)
    train(one, model, fed(one))
    collection = model.module.collection
    with monkeypatch.context() as tight:
        answers = iter([10, 1 << 30])
        tight.setattr(planner, "_host_bytes", lambda: next(answers))
        with pytest.raises(FAEError, match="no room for the hot rows"):
            collection.refresh(profile_of(others))
    expected = train(one, stock, feed)
    assert max(difference(expected, train(one, model, fed(one))).values()) < 4e-6


@pytest.mark.usefixtures("lone_rank")
@MODES
def test_a_refresh_that_runs_out_of_memory_leaves_the_hot_rows_as_they_were(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = case(kinds=("mixed", "pure") * 3, mode=mode)
    stock, model = build(one, stock_sharder(one)), build(one, fae_sharder(one, profile_of(one)))
    feed = [kjt for _, kjt in batches(one, 0)]
    train(one, stock, feed)
    train(one, model, fed(one))
    half_made: list[weakref.ref[torch.Tensor]] = []
    name = "Partition" if mode == "partitioned" else "Replicas"
    kind = getattr(sharded, name)

    def full_device(*_: Any) -> None:
        tensor = torch.zeros(3)
        half_made.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError

    def same(*given: Any) -> Any:
        assert half_made[0]() is None
        return kind(*given)

    answers = iter([full_device, same])
    monkeypatch.setattr(sharded, name, lambda *given: next(answers)(*given))
    with pytest.raises(torch.OutOfMemoryError):
        model.module.collection.refresh(profile_of(one))
    expected = train(one, stock, feed)
    assert max(difference(expected, train(one, model, fed(one))).values()) < 4e-6


@pytest.mark.usefixtures("lone_rank")
def test_where_no_hot_rows_come_back_a_batch_says_so_and_another_refresh_mends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = case(kinds=("mixed",) * 6)
    model = build(one, fae_sharder(one, profile_of(one)))
    collection = model.module.collection
    with monkeypatch.context() as tight:
        tight.setattr(planner, "_host_bytes", lambda: 10)
        with pytest.raises(FAEError, match="no room for the hot rows"):
            collection.refresh(profile_of(one))
    with pytest.raises(FAEError, match="cannot use hot rows\n  found: none, as a refresh failed"):
        train(one, model, fed(one))
    collection.refresh(profile_of(one))
    train(one, model, fed(one))
