"""The barrier of ranks: what each of them is told, and how much that takes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.fae.cases import profile_of
from tests.fae.ranks import Ranks
from tests.fae.small import case
from trainobs.fae.kjt import host_group
from trainobs.fae.sharding.barrier import RankBarrier, SyncPoint
from trainobs.fae.sharding.bounds import BoundsCheck
from trainobs.fae.sharding.hot_collections import HotCollections
from trainobs.fae.sharding.served import Stopwatch


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    ranks = Ranks(4)
    yield ranks
    ranks.stop()


@pytest.mark.parametrize("count", [0, 1, 17, 18, 40])
def test_each_rank_gets_what_is_meant_for_it(four: Ranks, count: int) -> None:
    for rank, (own, shared) in enumerate(four.run(_exchange, count)):
        assert own == [[100 * sender + rank + i / 64 for i in range(count)] for sender in range(4)]
        assert shared == [[sender + i / 64 for i in range(count)] for sender in range(4)]


def _exchange(rank: int, count: int) -> tuple[list[list[float]], list[list[float]]]:
    barrier = _barrier()
    numbers = torch.arange(count, dtype=torch.float64) / 64
    to_each = numbers + 100 * rank + torch.arange(4.0, dtype=torch.float64).unsqueeze(1)
    own = barrier.wait(SyncPoint.BACKWARD, 3, to_each)
    return own.tolist(), barrier.wait(SyncPoint.BACKWARD, 4, numbers + rank).tolist()


def test_a_wait_sends_as_much_to_a_rank_of_four_as_of_two(four: Ranks, pair: Ranks) -> None:
    assert four.run(_bytes_to_a_rank) == [160] * 4
    assert pair.run(_bytes_to_a_rank) == [160] * 2


def _bytes_to_a_rank(rank: int) -> float:
    """Of all that one wait gives to collectives."""
    sent: list[int] = []
    exchange = dist.all_to_all_single

    def counted(received: Any, given: Any, **more: Any) -> Any:
        sent.append(given.numel() * given.element_size())
        return exchange(received, given, **more)

    barrier = _barrier()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_to_all_single", counted)
        barrier.wait(SyncPoint.FORWARD, 0, torch.zeros(1))
    return sum(sent) / dist.get_world_size()


def _barrier() -> RankBarrier:
    assert dist.group.WORLD is not None
    return RankBarrier(dist.group.WORLD, 0, Stopwatch())


def test_a_rank_that_waits_alone_fails_no_later_model(pair: Ranks) -> None:
    assert pair.run(_after_a_failure) == [[[0.0], [1.0]]] * 2


def _after_a_failure(rank: int) -> list[list[float]]:
    with pytest.MonkeyPatch.context() as patch:
        first, later = _of_models(patch, 2)
        if rank:
            with pytest.raises(RuntimeError):
                first.wait(SyncPoint.FORWARD, 0, torch.zeros(1))
        dist.barrier()
        return later.wait(SyncPoint.FORWARD, 0, torch.full((1,), float(rank))).tolist()


def test_waits_of_two_models_are_never_taken_for_each_other(pair: Ranks) -> None:
    pair.run(_in_other_orders)


def _in_other_orders(rank: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        models = _of_models(patch, 2)
        with pytest.raises(RuntimeError):
            models[rank].wait(SyncPoint.BACKWARD, 0, torch.zeros(1))
        dist.barrier()


def _of_models(patch: pytest.MonkeyPatch, count: int) -> list[RankBarrier]:
    """The barrier of a collection of each of some models, whose waits soon fail."""
    patch.setattr(host_group, "timeout_of", lambda _: timedelta(seconds=1))
    assert dist.group.WORLD is not None
    made = []
    for _ in range(count):
        collections, bounds = HotCollections(dist.group.WORLD), BoundsCheck([], "overlay")
        overlay = collections.add(profile_of(case("row_wise", 2)), frozenset(), bounds, False)
        assert overlay.barrier is not None
        made.append(overlay.barrier)
    return made


def test_ranks_wait_as_long_as_the_group_says(pair: Ranks) -> None:
    assert pair.run(_timeouts) == [[7.0, 7.0]] * 2


def _timeouts(rank: int) -> list[float]:
    group = dist.new_group([0, 1], timeout=timedelta(seconds=7))
    made = HotCollections(group)._host_group
    assert made is not None
    return [host_group.timeout_of(of).total_seconds() for of in (group, made)]
