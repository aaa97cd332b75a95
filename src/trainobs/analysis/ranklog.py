"""What one rank recorded, read column by column so that a long run fits into memory."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trainobs.analysis.parquet import integers, names, numbers, read_columns
from trainobs.core.catalogue import CATALOGUE
from trainobs.core.kernel import BUCKETS, CELL, CELLS_SHAPE, FileClass, Op, Role
from trainobs.core.records import SETUP

_AXES = {"op": Op, "class": FileClass, "role": Role}
_FIELDS = ("count", "bytes", "ns", "wait_ns")

_STEP = integers(0, nullable=True)  # null stands for `SETUP`
_AXIS_COLUMNS = {
    name: names([member.name.lower() for member in enum]) for name, enum in _AXES.items()
}

STEPS_COLUMNS = {"step": _STEP, "epoch": integers(-1), "start_ns": integers(0)}
METRIC_COLUMNS = {metric.name: numbers for metric in CATALOGUE}
KERNEL_COLUMNS = {"step": _STEP, **_AXIS_COLUMNS, **{field: integers(0) for field in _FIELDS}}
LATENCY_COLUMNS = {**_AXIS_COLUMNS, "bucket": integers(0, BUCKETS), "count": integers(0)}


class RankLog:
    """The record of one rank.

    Attributes:
        rank: number of the rank.
        steps_files: parts of the `steps` table, in step order.
        kernel_files: parts of the `kernel` table; none below the eBPF level.
        latency_files: the `latency` table, or none.
    """

    def __init__(
        self,
        rank: int,
        *,
        steps_files: Sequence[Path],
        kernel_files: Sequence[Path] = (),
        latency_files: Sequence[Path] = (),
    ) -> None:
        self.rank = rank
        self.steps_files = tuple(steps_files)
        self.kernel_files = tuple(kernel_files)
        self.latency_files = tuple(latency_files)

    def step(self) -> npt.NDArray[np.int64]:
        """Step numbers in the order of the record; `SETUP` before the first. Shape (n,)."""
        return self._integers("step")

    def start_ns(self) -> npt.NDArray[np.int64]:
        """CLOCK_MONOTONIC at the beginning of each step, ns. Shape (n,)."""
        return self._integers("start_ns")

    def epoch(self) -> npt.NDArray[np.int64]:
        """Epoch of each step. Shape (n,)."""
        return self._integers("epoch")

    def metric(self, name: str) -> npt.NDArray[np.float64]:
        """Values of a metric of the catalogue, NaN where it has none. Shape (n,).

        Raises:
            RunLogError: a file is damaged.
        """
        parts = [self._floats(path, name) for path in self.steps_files]
        return np.concatenate([np.empty(0), *parts])

    def cells(self) -> npt.NDArray[np.void]:
        """Kernel cells summed over the whole run, `CELL` of shape (op, class, role)."""
        total = np.zeros((int(np.prod(CELLS_SHAPE)), len(_FIELDS)), np.uint64)
        for path in self.kernel_files:
            table = read_columns(path, KERNEL_COLUMNS)
            cell = _cell_index(table)
            for index, field in enumerate(_FIELDS):
                np.add.at(total[:, index], cell, table[field].to_numpy().astype(np.uint64))
        return total.view(CELL).reshape(CELLS_SHAPE)

    def latency(self) -> npt.NDArray[np.uint64]:
        """Latency histograms of the whole run, shape (op, class, role, BUCKETS)."""
        total = np.zeros((*CELLS_SHAPE, BUCKETS), np.uint64)
        for path in self.latency_files:
            table = read_columns(path, LATENCY_COLUMNS)
            where = np.unravel_index(_cell_index(table), CELLS_SHAPE)
            bucket = table["bucket"].to_numpy().astype(np.intp)
            total[where + (bucket,)] = table["count"].to_numpy()
        return total

    def _integers(self, name: str) -> npt.NDArray[np.int64]:
        columns = (read_columns(path, [name])[name] for path in self.steps_files)
        parts = [column.fill_null(SETUP).to_numpy().astype(np.int64) for column in columns]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def _floats(self, path: Path, name: str) -> npt.NDArray[np.float64]:
        """A metric that the run's version did not know yet is missing, like one without source."""
        table = read_columns(path, ["step", name])
        if name not in table.column_names:
            return np.full(len(table), np.nan)
        values: npt.NDArray[np.float64] = table[name].cast(pa.float64(), safe=False).to_numpy()
        return values


def _cell_index(table: pa.Table) -> npt.NDArray[np.intp]:
    """Flat index into (op, class, role) of each row."""
    axes = [_numbers(table[name], enum) for name, enum in _AXES.items()]
    return np.ravel_multi_index(tuple(axes), CELLS_SHAPE)


def _numbers(column: pa.ChunkedArray, enum: type[IntEnum]) -> npt.NDArray[np.intp]:
    """Enum values of a column of their lower-case names."""
    known = pa.array([member.name.lower() for member in enum])
    found = pc.index_in(column.cast(pa.string()), value_set=known)
    values: npt.NDArray[np.intp] = found.to_numpy().astype(np.intp)
    return values
