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

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import CELLS_SHAPE, FIELDS, UNTABLED, Op
from trainobs.core.catalogue import CATALOGUE, STEP_METRICS
from trainobs.core.catalogue.named import named_phase
from trainobs.core.cells import WORDS, StepCells
from trainobs.core.coverage import Coverage
from trainobs.core.records import UNKNOWN, StepTable
from trainobs.runlog.columns import AXES, NAN, TABLES, phase_columns
from trainobs.runlog.schema import BATCHES, KERNEL, LATENCY, STEPS
from trainobs.runlog.store import Table, by_field

_ROW = np.dtype(
    [
        ("step", "<i8"),
        ("epoch", "<i4"),
        ("start_ns", "<i8"),
        ("values", "<f8", (len(STEP_METRICS),)),
    ]
)
_CELL_ROW = np.dtype([("step", "<i8"), ("cell", "<u2"), ("fields", "<u8", (len(FIELDS),))])


class RunLogPart:
    """Steps that go into one set of files, `steps`, `kernel` and `batches`.

    Memory: about 0.5 kB a step for the metrics and 42 bytes for each kernel cell that is not zero.

    Args:
        coverage: which numbers of kernel cells are known; the others are null.
    """

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self._rows = np.empty(0, _ROW)
        self._cells: npt.NDArray[np.void] | None = None
        self._new_rows: list[npt.NDArray[np.void]] = []
        self._new_cells: list[npt.NDArray[np.void]] = []
        self._batches: list[npt.NDArray[np.void]] = []
        self._named: list[tuple[int, Mapping[str, npt.NDArray[np.float64]]]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, batch: StepTable) -> None:
        """Copy the steps of `batch`; its arrays may be reused afterwards."""
        self._new_rows.append(_compact_rows(batch))
        named = {name: column.copy() for name, column in batch.named_phases().items()}
        self._named.append((len(batch), named))
        if batch.cells is not None:
            self._new_cells.append(_compact_cells(batch.step, batch.cells))
        if batch.batches is not None:
            self._batches.append(batch.batches)
        self._length += len(batch)

    def steps(self) -> Table:
        """The `steps` table: step, epoch, start_ns, then one column per metric.

        Metrics of hot rows have a column where any of them is known, and so have phases with a
        name of the user's.
        """
        self._rows = np.concatenate([self._rows, *self._new_rows])
        self._new_rows.clear()
        rows = self._rows
        metrics = {
            metric.name: rows["values"][:, index]
            for index, metric in enumerate(STEP_METRICS)
            if index < len(CATALOGUE) or np.isfinite(rows["values"][:, index]).any()
        }
        named = self._phases()
        columns = (*TABLES[STEPS], *phase_columns([named_phase(name) or "" for name in named]))
        return Table(columns, {**by_field(rows), **metrics, **named})

    def _phases(self) -> Mapping[str, npt.NDArray[np.float64]]:
        """Phases with a name of the user's, unknown in what was delivered before there was any."""
        names = dict.fromkeys(name for _, columns in self._named for name in columns)
        joined = {
            name: np.concatenate([columns.get(name, np.full(n, NAN)) for n, columns in self._named])
            for name in names
        }
        self._named = [(self._length, joined)]
        return joined

    def kernel(self) -> Table | None:
        """The `kernel` table, ordered by cell, then step; None if no step came with cells."""
        if self._new_cells:
            old = [] if self._cells is None else [self._cells]
            self._cells = np.concatenate([*old, *self._new_cells])
            self._new_cells.clear()
        if self._cells is None:
            return None
        rows = self._cells[np.argsort(self._cells["cell"], kind="stable")]
        unknown = self._coverage.unknown_fields(rows["cell"])
        fields = np.where(unknown, UNKNOWN, rows["fields"].astype(np.int64))
        where = np.unravel_index(rows["cell"], CELLS_SHAPE)
        named = {**dict(zip(AXES, where, strict=True)), **dict(zip(FIELDS, fields.T, strict=True))}
        return Table(TABLES[KERNEL], {"step": rows["step"], **named})

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


def _compact_cells(steps: npt.NDArray[np.int64], cells: StepCells) -> npt.NDArray[np.void]:
    """The cells in which anything happened; a sleep may add time to a step without a count."""
    tabled = ~np.isin(cells.places // (WORDS // len(Op)), UNTABLED)
    places, values = cells.places[tabled], cells.values[:, tabled]
    numbers, at = np.unique(places // len(FIELDS), return_inverse=True)
    plain = np.zeros((len(steps), len(numbers), len(FIELDS)), np.uint64)
    plain[:, at, places % len(FIELDS)] = values
    row, cell = np.nonzero(plain.any(axis=-1))
    rows = np.empty(len(row), _CELL_ROW)
    rows["step"], rows["cell"], rows["fields"] = steps[row], numbers[cell], plain[row, cell]
    return rows
