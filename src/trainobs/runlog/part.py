"""One part of the run log: steps held in compact rows until they are encoded as Parquet.

Size is the design: a busy step has some 30 kernel cells of four numbers and some 40 metrics that
are not zero, 1.3 kB as plain integers. Measured on such steps, without losing a digit:

* kernel rows ordered by cell, then step, make each column a run of similar numbers and shrink the
  keys to nothing: 258 -> 157 bytes a step;
* DELTA_BINARY_PACKED then stores only the bits that differ: 135. BYTE_STREAM_SPLIT would reach 132
  but few readers know it for integers; for the ratios, which are floats, every reader does;
* the metrics cost 92 bytes a step as columns of their own, so what follows from the cells is
  stored too: a user opens one table in pandas and finds every metric of the catalogue;
* a batch of a loader costs 37 bytes, a quarter of it the name of a file and the time of its read, 7
  the begin and the end of the fetch that got it;
* CPU times, and by phase what the training thread slept for, which a replay needs, cost 19.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import CELLS_SHAPE, FIELDS, UNTABLED, Op
from trainobs.core.catalogue import CATALOGUE, STEP_METRICS
from trainobs.core.cells import WORDS, StepCells
from trainobs.core.coverage import Coverage
from trainobs.core.records import UNKNOWN, StepTable
from trainobs.runlog.columns import AXES, NAN, TABLES, brought_columns
from trainobs.runlog.schema import BATCHES, KERNEL, LATENCY, STEPS
from trainobs.runlog.table import Table, by_field


class RunLogPart:
    """Steps that go into one set of files, `steps`, `kernel` and `batches`; at least one.

    Memory: about 1 kB a step for the metrics, and 8 bytes for each number of the kernel that is
    not zero in any step of its delivery: some 100 of them.

    Args:
        coverage: which numbers of kernel cells are known; the others are null.

    Attributes:
        step_count: rows that are steps of the loop; to be read.
    """

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self._heads: list[tuple[npt.NDArray[np.integer[Any]], ...]] = []
        self._metrics: list[npt.NDArray[np.float64]] = []
        self._cells: list[tuple[npt.NDArray[np.int64], StepCells]] = []
        self._batches: list[npt.NDArray[np.void]] = []
        self._own: list[tuple[int, Mapping[str, npt.NDArray[np.float64]]]] = []
        self._length = 0
        self.step_count = 0

    def __len__(self) -> int:
        return self._length

    def append(self, table: StepTable) -> None:
        """Copy the steps of `table`; its arrays may be reused afterwards."""
        step = table.step.copy()
        self._heads.append((step, table.epoch.copy(), table.start_ns.copy()))
        self._metrics.append(table.metric_rows)
        brought = {name: column.copy() for name, column in table.brought().items()}
        self._own.append((len(table), brought))
        if table.cells is not None:
            self._cells.append((step, _tabled(table.cells)))
        if table.batches is not None:
            self._batches.append(table.batches)
        self._length += len(table)
        self.step_count += table.step_count

    def steps(self) -> Table:
        """The `steps` table: step, epoch, start_ns, then one column per metric.

        Metrics of hot rows have a column where any of them is known, and so has what the run brings
        along: `StepTable.brought`.
        """
        if len(self._metrics) > 1:
            self._metrics = [np.concatenate(self._metrics, axis=1)]
            self._heads = [tuple(map(np.concatenate, zip(*self._heads, strict=True)))]
        metrics = {
            metric.name: values
            for index, (metric, values) in enumerate(
                zip(STEP_METRICS, self._metrics[0], strict=True)
            )
            if index < len(CATALOGUE) or np.isfinite(values).any()
        }
        brought = self._brought()
        columns = (*TABLES[STEPS], *brought_columns(brought))
        head = dict(zip(("step", "epoch", "start_ns"), self._heads[0], strict=True))
        return Table(columns, {**head, **metrics, **brought})

    def _brought(self) -> Mapping[str, npt.NDArray[np.float64]]:
        """What the run brings along, unknown in what was delivered before there was any."""
        names = dict.fromkeys(name for _, columns in self._own for name in columns)
        joined = {
            name: np.concatenate([columns.get(name, np.full(n, NAN)) for n, columns in self._own])
            for name in names
        }
        self._own = [(self._length, joined)]
        return joined

    def kernel(self) -> Table | None:
        """The `kernel` table, ordered by cell, then step; None if no step came with cells."""
        if not self._cells:
            return None
        steps = np.concatenate([steps for steps, _ in self._cells])
        joined = StepCells.join([cells for _, cells in self._cells])
        row, cell, fields = _by_cell(joined, self._coverage)
        where = np.unravel_index(cell, CELLS_SHAPE)
        named = dict(zip(AXES, where, strict=True))
        return Table(TABLES[KERNEL], {"step": steps[row], **named, **fields})

    def batches(self) -> Table | None:
        """The `batches` table; None if no step came with any."""
        if not any(map(len, self._batches)):
            return None
        if len(self._batches) > 1:
            self._batches = [np.concatenate(self._batches)]
        return Table(TABLES[BATCHES], by_field(self._batches[0]))


def latency_table(buckets: npt.NDArray[np.uint64]) -> Table:
    """The `latency` table: the non-zero buckets of histograms (op, class, role, BUCKETS)."""
    where = np.nonzero(buckets)
    named = dict(zip((*AXES, "bucket", "count"), (*where, buckets[where]), strict=True))
    return Table(TABLES[LATENCY], named)


def _tabled(cells: StepCells) -> StepCells:
    """Those that have rows in the table; a copy."""
    tabled = ~np.isin(cells.places // (WORDS // len(Op)), UNTABLED)
    return StepCells(cells.places[tabled], cells.values[:, tabled])


def _by_cell(
    cells: StepCells, coverage: Coverage
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], dict[str, npt.NDArray[np.int64]]]:
    """Step, cell and fields of each cell in which anything happened; by cell, then step.

    A sleep may add time to a step without a count.
    """
    columns = cells.values.T.view(np.int64)
    numbers, first, at = np.unique(
        cells.places // len(FIELDS), return_index=True, return_inverse=True
    )
    if not len(numbers):
        return np.empty(0, np.intp), numbers, dict.fromkeys(FIELDS, np.empty(0, np.int64))
    happened = np.logical_or.reduceat(columns != 0, first, axis=0)
    cell, row = np.nonzero(happened)
    unknown = coverage.unknown_fields(numbers)
    fields = {}
    for index, field in enumerate(FIELDS):
        has = cells.places % len(FIELDS) == index
        of_cells = np.zeros((len(numbers), len(cells)), np.int64)
        of_cells[at[has]] = columns[has]
        of_cells[unknown[:, index]] = UNKNOWN
        fields[field] = of_cells[happened]
    return row, numbers[cell], fields
