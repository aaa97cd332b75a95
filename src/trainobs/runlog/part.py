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
from functools import reduce

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

_ROW = np.dtype(
    [
        ("step", "<i8"),
        ("epoch", "<i4"),
        ("start_ns", "<i8"),
        ("values", "<f8", (len(STEP_METRICS),)),
    ]
)


class RunLogPart:
    """Steps that go into one set of files, `steps`, `kernel` and `batches`.

    Memory: about 0.5 kB a step for the metrics, and 8 bytes for each number of the kernel that is
    not zero in any step of its delivery: some 100 of them.

    Args:
        coverage: which numbers of kernel cells are known; the others are null.
    """

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self._rows = np.empty(0, _ROW)
        self._cells: list[tuple[npt.NDArray[np.int64], StepCells]] = []
        self._new_rows: list[npt.NDArray[np.void]] = []
        self._batches: list[npt.NDArray[np.void]] = []
        self._own: list[tuple[int, Mapping[str, npt.NDArray[np.float64]]]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, batch: StepTable) -> None:
        """Copy the steps of `batch`; its arrays may be reused afterwards."""
        self._new_rows.append(_compact_rows(batch))
        brought = {name: column.copy() for name, column in batch.brought().items()}
        self._own.append((len(batch), brought))
        if batch.cells is not None:
            self._cells.append((batch.step.copy(), _tabled(batch.cells)))
        if batch.batches is not None:
            self._batches.append(batch.batches)
        self._length += len(batch)

    def steps(self) -> Table:
        """The `steps` table: step, epoch, start_ns, then one column per metric.

        Metrics of hot rows have a column where any of them is known, and so has what the run brings
        along: `StepTable.brought`.
        """
        self._rows = np.concatenate([self._rows, *self._new_rows])
        self._new_rows.clear()
        rows = self._rows
        metrics = {
            metric.name: rows["values"][:, index]
            for index, metric in enumerate(STEP_METRICS)
            if index < len(CATALOGUE) or np.isfinite(rows["values"][:, index]).any()
        }
        brought = self._brought()
        columns = (*TABLES[STEPS], *brought_columns(brought))
        return Table(columns, {**by_field(rows), **metrics, **brought})

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
        named = {**dict(zip(AXES, where, strict=True)), **dict(zip(FIELDS, fields.T, strict=True))}
        return Table(TABLES[KERNEL], {"step": steps[row], **named})

    def batches(self) -> Table | None:
        """The `batches` table; None if no step came with any."""
        if not any(map(len, self._batches)):
            return None
        self._batches = [np.concatenate(self._batches)]
        return Table(TABLES[BATCHES], by_field(self._batches[0]))


def latency_table(buckets: npt.NDArray[np.uint64]) -> Table:
    """The `latency` table: the non-zero buckets of histograms (op, class, role, BUCKETS)."""
    where = np.nonzero(buckets)
    named = dict(zip((*AXES, "bucket", "count"), (*where, buckets[where]), strict=True))
    return Table(TABLES[LATENCY], named)


def _compact_rows(batch: StepTable) -> npt.NDArray[np.void]:
    rows = np.empty(len(batch), _ROW)
    rows["step"], rows["epoch"], rows["start_ns"] = batch.step, batch.epoch, batch.start_ns
    rows["values"] = batch.metric_matrix()
    return rows


def _tabled(cells: StepCells) -> StepCells:
    """Those that have rows in the table; a copy."""
    tabled = ~np.isin(cells.places // (WORDS // len(Op)), UNTABLED)
    return StepCells(cells.places[tabled], cells.values[:, tabled])


def _by_cell(
    cells: StepCells, coverage: Coverage
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.int64]]:
    """Step, cell and fields (FIELDS,) of each cell in which anything happened; by cell, then step.

    A sleep may add time to a step without a count.
    """
    numbers, at = np.unique(cells.places // len(FIELDS), return_inverse=True)
    plain = np.zeros((len(numbers), len(cells), len(FIELDS)), np.int64)
    plain[at, :, cells.places % len(FIELDS)] = cells.values.T
    cell, row = np.nonzero(reduce(np.bitwise_or, np.moveaxis(plain, -1, 0)))
    np.moveaxis(plain, 1, -1)[coverage.unknown_fields(numbers)] = UNKNOWN
    return row, numbers[cell], plain[cell, row]
