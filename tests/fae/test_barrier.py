"""The barrier of ranks: what each of them is told, and how much that takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.fae.ranks import Ranks
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
