"""Whether all ranks are at the same point of training, checked before what would hang otherwise."""

from __future__ import annotations

from collections.abc import Sequence
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


_KERNELS_A_LOT = 4
"""Kernels whose numbers go at once: rows for each rank, and two rates; and one for all kernels."""


class RankBarrier:
    """A barrier of the ranks, on the host, that checks where each of them is.

    With replicas, ranks wait in the forward and backward of a mixed batch, and in the backward of a
    pure one. With a partition they wait in each forward, at a point for each kind of batch. So if
    ranks have batches of different kinds, they are at different points when they wait next, and all
    of them raise, before any collective that would never end. A barrier costs one all-gather of a
    few numbers between hosts; it neither waits for the device nor uses its links. All collections
    of a model use one group, or ranks would wait for each other in those of two collections.

    Args:
        group: the ranks, on hosts, and of all collections of a model.
        number: of this collection.
        stopwatch: for the time of barriers.
    """

    def __init__(self, group: dist.ProcessGroup, number: int, stopwatch: Stopwatch) -> None:
        self._group = group
        self._ranks = dist.get_process_group_ranks(group)
        self._collection = number
        self._lot = 1 + _KERNELS_A_LOT * (len(self._ranks) + 2)
        self.stopwatch = stopwatch

    def wait(self, point: SyncPoint, batch: int, numbers: Sequence[float] = ()) -> Tensor:
        """Wait until all ranks are at a point.

        Args:
            point: where this rank is.
            batch: how many batches it had before.
            numbers: sent to the other ranks, as many on each of them.

        Returns:
            float64[ranks, numbers] of all ranks.

        Raises:
            FAEError: another rank is somewhere else.
        """
        lots = [numbers[i : i + self._lot] for i in range(0, len(numbers), self._lot)]
        gathered = [self._gather(point, batch, lot) for lot in lots or [[]]]
        return torch.cat(gathered, dim=1)[:, : len(numbers)]

    def _gather(self, point: SyncPoint, batch: int, lot: Sequence[float]) -> Tensor:
        padding = [0.0] * (self._lot - len(lot))  # ranks at any two points send one size
        place = (point, batch, self._collection)
        sent = torch.tensor([*place, *lot, *padding], dtype=torch.float64)
        flat = sent.new_empty(len(self._ranks) * len(sent))
        with self.stopwatch:
            all_gather(flat, sent, self._group)
        gathered = flat.view(len(self._ranks), -1)
        if (gathered[:, : len(place)] != sent[: len(place)]).any():
            self._refuse(gathered)
        return gathered[:, len(place) :]

    def _refuse(self, gathered: Tensor) -> None:
        places = [
            f"rank {rank}: {_NAMES[SyncPoint(int(point))]}, batch {int(batch)}"
            + (f" of collection {int(number)}" if number else "")
            for rank, (point, batch, number) in zip(
                self._ranks, gathered[:, :3].tolist(), strict=True
            )
        ]
        do = (
            "pack on every rank with trainobs.fae.pack, same profile, seed and world size, and "
            "give every rank as many batches"
        )
        if SyncPoint.PULL in gathered[:, 0]:  # a rank without a shard sees no write to the tables
            do += "; after a write to the tables on some ranks, such as a load in place, call "
            do += "tables_changed() of the collection on every rank"
        raise FAEError("ranks train on batches of different kinds", "; ".join(places[:8]), do)
