"""Learning rates of hot rows: those of the tables that they come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from trainobs.core.errors import FAEError
from trainobs.fae.sharding.layout import KernelLayout, SlabRates
from trainobs.fae.sharding.write_back import BackingShard


class TableRates:
    """Asks the tables on this rank for their rates, which a schedule may change at any time.

    Args:
        layouts: of the kernels with hot rows.
        shards: what this rank has of the tables.
    """

    def __init__(self, layouts: Iterable[KernelLayout], shards: Iterable[BackingShard]) -> None:
        trainers = {(shard.table, shard.column): shard.kernel for shard in shards}
        self._trainers = {id(trainer): trainer for trainer in trainers.values()}
        of_slab = {place: id(trainer) for place, trainer in trainers.items()}
        self._slabs = [
            [of_slab.get((slab.table, slab.column), 0) for slab in layout.slabs]
            for layout in layouts
        ]

    def now(self) -> list[SlabRates]:
        """Of each kernel."""
        rates = {number: float(t.get_learning_rate()) for number, t in self._trainers.items()}
        return [[rates.get(number, float("nan")) for number in slabs] for slabs in self._slabs]


def span(rates: SlabRates) -> tuple[float, float]:
    """The least and the largest rate that is known; NaN if none is."""
    known = [rate for rate in rates if rate == rate] or [float("nan")]
    return min(known), max(known)


def agreed(of_ranks: Tensor) -> SlabRates:
    """The rate of each slab: that of the ranks which know it.

    Args:
        of_ranks: float64[ranks, slabs].

    Raises:
        FAEError: two ranks have other rates.
    """
    return [_one(rates) for rates in of_ranks.T.tolist()]


def _one(rates: Sequence[float]) -> float:
    known = {rate for rate in rates if rate == rate}
    if len(known) > 1:
        raise FAEError(
            "cannot train hot rows",
            f"learning rates {sorted(known)} of one table on different ranks",
            "set the learning rate of the fused optimizer to the same value on all ranks",
        )
    return known.pop()
