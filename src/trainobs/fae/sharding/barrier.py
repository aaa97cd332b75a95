"""Whether all ranks are at the same point of training, checked before what would hang otherwise."""

from __future__ import annotations

from enum import IntEnum

import torch
import torch.distributed as dist
from torch import Tensor

from trainobs.core.errors import FAEError
from trainobs.fae.sharding.served import Stopwatch


class SyncPoint(IntEnum):
    """A point of training at which all ranks wait for each other."""

    FORWARD = 1
    BACKWARD = 2
    PULL = 3
    PURE_FORWARD = 4


_NAMES = {
    SyncPoint.FORWARD: "forward of a mixed batch",
    SyncPoint.BACKWARD: "backward",
    SyncPoint.PULL: "reading of hot rows from their tables",
    SyncPoint.PURE_FORWARD: "forward of a pure batch",
}


def all_gather(gathered: Tensor, mine: Tensor, group: dist.ProcessGroup | None) -> None:
    """Gather tensors of one shape, one behind the other in the order of ranks."""
    gather = getattr(dist, "all_gather_single", None)  # torch 2.13 has the other name as well
    (gather or dist.all_gather_into_tensor)(gathered, mine, group=group)


_LOT = 17
"""Numbers that go at once: one, and four for each of four kernels, are what a backward sends."""


class RankBarrier:
    """A barrier of the ranks, on the host, that checks where each of them is.

    With replicas, ranks wait in the forward and backward of a mixed batch, and in the backward of a
    pure one. With a partition they wait in each forward, at a point for each kind of batch. So if
    ranks have batches of different kinds, they are at different points when they wait next, and all
    of them raise, before any collective that would never end. A barrier costs one all-to-all of a
    few numbers between hosts, so that a rank gets what is meant for it alone; it neither waits for
    the device nor uses its links. All collections of a model use one group, or ranks would wait for
    each other in those of two collections. Each model has a group of its own: ranks tell each other
    at which collection they are, and not of which model.

    Args:
        group: the ranks, on hosts, and of all collections of one model.
        number: of this collection.
        stopwatch: for the time of barriers.

    Attributes:
        ranks: of the group.
    """

    def __init__(self, group: dist.ProcessGroup, number: int, stopwatch: Stopwatch) -> None:
        self._group = group
        self.ranks = dist.get_process_group_ranks(group)
        self._collection = number
        self.stopwatch = stopwatch

    def wait(self, point: SyncPoint, batch: int, numbers: Tensor) -> Tensor:
        """Wait until all ranks are at a point.

        Args:
            point: where this rank is.
            batch: how many batches it had before.
            numbers: float64[ranks, n], what this rank sends to each, or float64[n] for all of them;
                n is the same on all ranks.

        Returns:
            float64[ranks, n], what each rank sent to this one.

        Raises:
            FAEError: another rank is somewhere else.
        """
        lots = torch.split(numbers.expand(len(self.ranks), -1), _LOT, dim=1)
        return torch.cat([self._exchange(point, batch, lot) for lot in lots], dim=1)

    def _exchange(self, point: SyncPoint, batch: int, lot: Tensor) -> Tensor:
        place = torch.tensor([point, batch, self._collection], dtype=torch.float64)
        ends = [len(place), len(place) + lot.shape[1]]
        sent = place.new_zeros(len(self.ranks), len(place) + _LOT)  # of one size at any point
        sent[:, : ends[0]] = place
        sent[:, ends[0] : ends[1]] = lot
        received = torch.empty_like(sent)
        with self.stopwatch:
            dist.all_to_all_single(received, sent, group=self._group)
        if (received[:, : ends[0]] != place).any():
            self._refuse(received)
        return received[:, ends[0] : ends[1]]

    def _refuse(self, received: Tensor) -> None:
        places = [
            f"rank {rank}: {_NAMES[SyncPoint(int(point))]}, batch {int(batch)}"
            + (f" of collection {int(number)}" if number else "")
            for rank, (point, batch, number) in zip(
                self.ranks, received[:, :3].tolist(), strict=True
            )
        ]
        do = (
            "pack on every rank with trainobs.fae.pack, same profile, seed and world size, and "
            "give every rank as many batches"
        )
        if SyncPoint.PULL in received[:, 0]:  # a rank without a shard sees no write to the tables
            do += "; after a write to the tables on some ranks, such as a load in place, call "
            do += "tables_changed() of the collection on every rank"
        raise FAEError("ranks train on batches of different kinds", "; ".join(places[:8]), do)
