"""Whether all ranks are at the same point of training, asked before what would hang otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import count
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from trainobs.core.errors import FAEError
from trainobs.fae.shard.served import Stopwatch


class Point(IntEnum):
    """A point of training at which ranks meet."""

    FORWARD = 1
    BACKWARD = 2
    PULL = 3
    PURE_FORWARD = 4


_NAMES = {
    Point.FORWARD: "forward of a mixed batch",
    Point.BACKWARD: "backward",
    Point.PULL: "reading of hot rows from their tables",
    Point.PURE_FORWARD: "forward of a pure batch",
}


_host_groups: WeakKeyDictionary[dist.ProcessGroup, tuple[dist.ProcessGroup, Iterator[int]]] = (
    WeakKeyDictionary()  # of this process: of ranks, where they meet
)


def all_gather(gathered: Tensor, mine: Tensor, group: dist.ProcessGroup | None) -> None:
    """Gather tensors of one shape, one behind the other in the order of ranks."""
    gather = getattr(dist, "all_gather_single", None)  # torch 2.13 has the other name as well
    (gather or dist.all_gather_into_tensor)(gathered, mine, group=group)


class RankAgreement:
    """Meetings of the ranks, on the host and in a group of their own.

    With replicas a mixed batch meets in forward and backward, a pure one in backward only; with a
    partition each meets in forward, at a point of its kind. So where ranks have batches of
    different kinds, the first meeting after that is of two points, and all of them raise, before
    any collective whose other side will never come. A meeting costs a gather of a few numbers
    between hosts; it neither waits for the device nor uses its links. All collections of a model
    meet in one group, or ranks would wait for each other in those of two collections.

    Args:
        group: the ranks.
        number_count: the most that a rank has to say at a meeting.
        stopwatch: for the time of meetings.

    Attributes:
        stopwatch: the same.
    """

    def __init__(self, group: dist.ProcessGroup, number_count: int, stopwatch: Stopwatch) -> None:
        self._number_count = number_count
        self.stopwatch = stopwatch
        self.ranks = dist.get_process_group_ranks(group)
        if group not in _host_groups:
            host = dist.new_group(self.ranks, backend="gloo", use_local_synchronization=True)
            _host_groups[group] = (host, count())
        self._group, numbers = _host_groups[group]
        self._collection = next(numbers)  # of its ranks; made in one order everywhere

    def meet(self, point: Point, batch: int, numbers: Sequence[float] = ()) -> Tensor:
        """Come to a point; go on when all ranks have.

        Args:
            point: where this rank is.
            batch: how many batches it had before.
            numbers: what it has to say.

        Returns:
            float64[ranks, numbers], zeros where a rank had less to say.

        Raises:
            FAEError: another rank is somewhere else.
        """
        silence = [0.0] * (self._number_count - len(numbers))  # all meetings are of one size
        place = (point, batch, self._collection)
        said = torch.tensor([*place, *numbers, *silence], dtype=torch.float64)
        gathered = said.new_empty(len(self.ranks) * len(said))
        with self.stopwatch:
            all_gather(gathered, said, self._group)
        heard = gathered.view(len(self.ranks), -1)
        if (heard[:, : len(place)] != said[: len(place)]).any():
            self._disagree(heard)
        return heard[:, len(place) :]

    def _disagree(self, heard: Tensor) -> None:
        places = [
            f"rank {rank}: {_NAMES[Point(int(point))]}, batch {int(batch)}"
            + (f" of collection {int(number)}" if number else "")
            for rank, (point, batch, number) in zip(self.ranks, heard[:, :3].tolist(), strict=True)
        ]
        do = (
            "pack on every rank with trainobs.fae.pack, same profile, seed and world size, and "
            "give every rank as many batches"
        )
        if Point.PULL in heard[:, 0]:  # a rank without a shard sees no write to the tables
            do += "; after a load in place, call load_state_dict on every rank"
        raise FAEError(
            "ranks train on batches of different kinds",
            "; ".join(places[:8]),
            do,
        )
