"""Learning rates of hot rows, and their count of lookups: those of the tables they come from."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import Tensor

from trainobs.core.errors import FAEError
from trainobs.fae.sharding.layout import KernelLayout, SlabRates
from trainobs.fae.sharding.torchrec_private import (
    counts_lookups,
    lookup_count,
    set_lookup_count,
)
from trainobs.fae.sharding.write_back import BackingShard

_CANNOT = "cannot train hot rows"


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


class LookupCounts:
    """The count of lookups by which Adam corrects its averages: one for all tables.

    The tables count each batch, but those that leave them alone, which are counted here.

    Args:
        shards: what this rank has of the tables.
    """

    def __init__(self, shards: Iterable[BackingShard]) -> None:
        kernels = {id(shard.kernel): shard.kernel for shard in shards}
        self._kernels = [k for k in kernels.values() if counts_lookups(k)]

    def now(self) -> float:
        """Lookups before this one; NaN where no table on this rank is trained by that.

        Raises:
            FAEError: tables have different ones.
        """
        return one_count(float(lookup_count(kernel)) for kernel in self._kernels)

    def skip(self) -> None:
        """Count a batch that the tables do not look up."""
        for kernel in self._kernels:
            set_lookup_count(kernel, lookup_count(kernel) + 1)


def rate_of(tables: Collection[str], shards: Iterable[BackingShard]) -> float:
    """Learning rate of these tables; NaN where this rank has none of them.

    Raises:
        FAEError: they are trained at different rates.
    """
    trainers = {id(shard.kernel): shard.kernel for shard in shards if shard.table in tables}
    return _only(
        (float(trainer.get_learning_rate()) for trainer in trainers.values()),
        "learning rates {} of tables whose hot rows are trained together",
        "set one learning rate in all parameter groups of the fused optimizer",
    )


def one_count(counts: Iterable[float]) -> float:
    """The count of those that know it; NaN where none does.

    Raises:
        FAEError: they know different ones.
    """
    return _only(
        counts,
        "tables of one collection that Adam has trained for {} steps",
        "set the step of the whole model's fused optimizer, on all ranks",
    )


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
    found = "learning rates {} of one table on different ranks"
    do = "set the learning rate of the fused optimizer to the same value on all ranks"
    return [_only(rates, found, do) for rates in of_ranks.T.tolist()]


def _only(values: Iterable[float], found: str, do: str) -> float:
    """What those say that know it; NaN where none does."""
    known = {value for value in values if value == value}
    if len(known) > 1:
        raise FAEError(_CANNOT, found.format(sorted(known)), do)
    return known.pop() if known else float("nan")
