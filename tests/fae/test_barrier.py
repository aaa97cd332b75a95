"""The barrier of ranks: what each of them is told, and how much that takes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.fae.cases import profile_of
from tests.fae.parity import build, train
from tests.fae.ranks import Ranks
from tests.fae.sharders import fae_sharder
from tests.fae.small import case, fed
from trainobs.fae.sharding.barrier import RankBarrier, SyncPoint
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
        barrier.wait(SyncPoint.FORWARD, 0)
    return sum(sent) / dist.get_world_size()


def _barrier() -> RankBarrier:
    assert dist.group.WORLD is not None
    return RankBarrier(dist.group.WORLD, 0, Stopwatch())


@pytest.mark.parametrize("mode", ["overlay", "partitioned"])
def test_models_of_one_process_leave_no_threads(pair: Ranks, mode: str) -> None:
    assert pair.run(_more_threads, mode) == [0, 0]


def _more_threads(rank: int, mode: str) -> int:
    """After one more model than the first."""
    one = case("row_wise", 2, mode=mode)
    counts = []
    for _ in range(2):
        train(one, build(one, fae_sharder(one, profile_of(one))), fed(one, rank))
        counts.append(len(os.listdir("/proc/self/task")))
    return counts[1] - counts[0]
