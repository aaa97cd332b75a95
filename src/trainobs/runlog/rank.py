"""What one rank recorded, read column by column so that a long run fits into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trainobs.core.abi import BUCKETS, CELL, CELLS_SHAPE, FileClass, Op, Role
from trainobs.core.catalogue import METRICS, STEP_METRICS
from trainobs.core.coverage import Coverage
from trainobs.core.embedding_table import LOOKUP_FIELDS, EmbeddingTable
from trainobs.core.records import BATCH_ROW, SETUP, UNKNOWN
from trainobs.runlog.parquet import (
    Check,
    booleans,
    integers,
    names,
    numbers,
    read_columns,
    texts,
)

_AXES = {"op": Op, "class": FileClass, "role": Role}
_FIELDS = ("count", "bytes", "ns", "wait_ns")

_STEP = integers(0, nullable=True)  # null stands for `SETUP`
_AXIS_COLUMNS = {
    name: names([member.name.lower() for member in enum]) for name, enum in _AXES.items()
}

STEPS_COLUMNS = {"step": _STEP, "epoch": integers(-1), "start_ns": integers(0)}
METRIC_COLUMNS = {metric.name: numbers for metric in STEP_METRICS}
KERNEL_COLUMNS = {
    "step": _STEP,
    **_AXIS_COLUMNS,
    **{field: integers(0, nullable=True) for field in _FIELDS},
}
ARRIVALS_COLUMNS = {"group": integers(0), "seq": integers(0), "at_ns": integers(0)}
BATCHES_COLUMNS: dict[str, Check] = {
    name: texts if kind.kind == "S" else integers(0, nullable=True)
    for name, (kind, *_) in (BATCH_ROW.fields or {}).items()
}
LOOKUP_COLUMNS = {"step": _STEP, "epoch": integers(-1), "sampled": booleans}
AMOUNT_COLUMNS = {field: integers(0, nullable=True) for field in LOOKUP_FIELDS}
LATENCY_COLUMNS = {**_AXIS_COLUMNS, "bucket": integers(0, BUCKETS), "count": integers(0)}


class RankLog:
    """The record of one rank.

    Attributes:
        rank: number of the rank.
        steps_files: parts of the `steps` table, in step order.
        kernel_files: parts of the `kernel` table; none below the eBPF level.
        batches_files: parts of the `batches` table; none where batches are not marked.
        latency_files: the `latency` table, or none.
        arrivals_files: parts of the `arrivals` table, of a job of several ranks.
        embeddings_files: parts of the `embeddings` table, of a model with embedding tables.
        tables: those tables.
        host: name of the node, whose clock is in all times; None where unknown.
    """

    def __init__(
        self,
        rank: int,
        *,
        steps_files: Sequence[Path],
        kernel_files: Sequence[Path] = (),
        batches_files: Sequence[Path] = (),
        latency_files: Sequence[Path] = (),
        arrivals_files: Sequence[Path] = (),
        embeddings_files: Sequence[Path] = (),
        tables: Sequence[EmbeddingTable] = (),
        host: str | None = None,
        coverage: Coverage | None = None,
    ) -> None:
        self.rank = rank
        self._coverage = coverage or Coverage.whole()
        self.steps_files = tuple(steps_files)
        self.kernel_files = tuple(kernel_files)
        self.batches_files = tuple(batches_files)
        self.latency_files = tuple(latency_files)
        self.arrivals_files = tuple(arrivals_files)
        self.embeddings_files = tuple(embeddings_files)
        self.tables = tuple(tables)
        self.host = host

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

        Older run logs hold zeros where a program was off; here these are unknown as well.

        Raises:
            RunLogError: a file is damaged.
        """
        parts = [self._floats(path, name) for path in self.steps_files]
        values = np.concatenate([np.empty(0), *parts])
        known = self._coverage.knows(METRICS[name].programs) if name in METRICS else True
        return values if known else np.full_like(values, np.nan)

    def cells(self) -> npt.NDArray[np.void]:
        """Kernel cells summed over the whole run, `CELL` of shape (op, class, role).

        What is unknown counts as 0: whoever asks knows which metrics are known.
        """
        total = np.zeros((int(np.prod(CELLS_SHAPE)), len(_FIELDS)), np.uint64)
        for path in self.kernel_files:
            table = read_columns(path, KERNEL_COLUMNS)
            cell = _cell_index(table)
            for index, field in enumerate(_FIELDS):
                amounts = table[field].fill_null(0).to_numpy().astype(np.uint64)
                np.add.at(total[:, index], cell, amounts)
        return total.view(CELL).reshape(CELLS_SHAPE)

    def batches(self, name: str) -> npt.NDArray[np.int64]:
        """A column of the `batches` table, `UNKNOWN` where it is null. Shape (n,)."""
        columns = (read_columns(path, [name])[name] for path in self.batches_files)
        parts = [column.fill_null(UNKNOWN).to_numpy().astype(np.int64) for column in columns]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def slowest_file(self, index: int) -> str | None:
        """`slowest_file` of one row of the `batches` table, counted from 0."""
        for path in self.batches_files:
            column = read_columns(path, ["slowest_file"])["slowest_file"]
            if index < len(column):
                name: str | None = column[index].as_py()
                return name
            index -= len(column)
        raise IndexError(index)

    def latency(self) -> npt.NDArray[np.uint64]:
        """Latency histograms of the whole run, shape (op, class, role, BUCKETS)."""
        total = np.zeros((*CELLS_SHAPE, BUCKETS), np.uint64)
        for path in self.latency_files:
            table = read_columns(path, LATENCY_COLUMNS)
            where = np.unravel_index(_cell_index(table), CELLS_SHAPE)
            bucket = table["bucket"].to_numpy().astype(np.intp)
            total[where + (bucket,)] = table["count"].to_numpy()
        return total

    def arrivals(self) -> dict[tuple[int, int], int]:
        """(group, number) of a collective -> CLOCK_MONOTONIC as this rank came to it, ns."""
        found: dict[tuple[int, int], int] = {}
        for path in self.arrivals_files:
            table = read_columns(path, ARRIVALS_COLUMNS)
            group, seq, at_ns = (table[name].to_pylist() for name in ARRIVALS_COLUMNS)
            found.update(zip(zip(group, seq, strict=True), at_ns, strict=True))
        return found

    def lookups(self, columns: Iterable[str]) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Columns of the table of lookups, part by part, in the order of steps within a table.

        `table` is the index into `tables`, `step` is `SETUP` before the first, amounts are floats
        that are NaN where unknown.
        """
        wanted = tuple(columns)
        known = pa.array([table.name for table in self.tables], pa.string())
        for path in self.embeddings_files:
            part = read_columns(path, {*wanted, "step"})
            yield {name: _lookup_column(part, name, known) for name in wanted}

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


def _lookup_column(part: pa.Table, name: str, known: pa.Array) -> npt.NDArray[Any]:
    """A field that the run's version did not know yet is unknown."""
    if name not in part.column_names:
        return np.full(len(part), np.nan)
    column = part[name]
    if name == "table":
        index: npt.NDArray[np.intp] = (
            pc.index_in(column.cast(pa.string()), value_set=known).to_numpy().astype(np.intp)
        )
        return index
    if name in LOOKUP_FIELDS:
        values: npt.NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy()
        return values
    plain: npt.NDArray[Any] = (column.fill_null(SETUP) if name == "step" else column).to_numpy()
    return plain


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
