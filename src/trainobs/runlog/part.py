"""One part of the run log: steps held in compact rows until they are encoded as Parquet.

Size is the design: a busy step has some 30 kernel cells of four numbers and some 40 metrics that
are not zero, 1.3 kB as plain integers. Measured on such steps, without losing a digit:

* kernel rows ordered by cell, then step, make each column a run of similar numbers and shrink the
  keys to nothing: 258 -> 157 bytes a step;
* DELTA_BINARY_PACKED then stores only the bits that differ: 135. BYTE_STREAM_SPLIT would reach 132
  but few readers know it for integers; for the ratios, which are floats, every reader does;
* the metrics cost 92 bytes a step as columns of their own, so what follows from the cells is
  stored too: a user opens one table in pandas and finds every metric of the catalogue;
* a batch of a loader costs 31 bytes, a quarter of it the name of a file and the time of its read.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from trainobs.core.abi import CELLS_SHAPE, FIELDS, FileClass, Op, Role
from trainobs.core.catalogue import CATALOGUE, STEP_METRICS
from trainobs.core.cells import StepCells
from trainobs.core.coverage import Coverage
from trainobs.core.metrics import Metric, MetricKind
from trainobs.core.records import BATCH_ROW, SETUP, StepTable
from trainobs.runlog.columns import numbers, texts

_ROW = np.dtype(
    [
        ("step", "<i8"),
        ("epoch", "<i4"),
        ("start_ns", "<i8"),
        ("values", "<f8", (len(STEP_METRICS),)),
    ]
)
_CELL_ROW = np.dtype([("step", "<i8"), ("cell", "<u2"), ("fields", "<u8", (len(FIELDS),))])
_AXES = {"op": Op, "class": FileClass, "role": Role}


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
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, batch: StepTable) -> None:
        """Copy the steps of `batch`; its arrays may be reused afterwards."""
        self._new_rows.append(_compact_rows(batch))
        if batch.cells is not None:
            self._new_cells.append(_compact_cells(batch.step, batch.cells))
        if batch.batches is not None:
            self._batches.append(batch.batches)
        self._length += len(batch)

    def steps(self) -> pa.Table:
        """The `steps` table: step, epoch, start_ns, then one column per metric.

        Metrics of hot rows have a column where any of them is known.
        """
        self._rows = np.concatenate([self._rows, *self._new_rows])
        self._new_rows.clear()
        rows = self._rows
        columns = {
            "step": _step_array(rows["step"]),
            "epoch": numbers(rows["epoch"]),
            "start_ns": numbers(rows["start_ns"]),
        }
        for index, metric in enumerate(STEP_METRICS):
            values = rows["values"][:, index]
            if index < len(CATALOGUE) or np.isfinite(values).any():
                columns[metric.name] = _metric_array(metric, values)
        return pa.table(columns)

    def kernel(self) -> pa.Table | None:
        """The `kernel` table, ordered by cell, then step; None if no step came with cells."""
        if self._new_cells:
            old = [] if self._cells is None else [self._cells]
            self._cells = np.concatenate([*old, *self._new_cells])
            self._new_cells.clear()
        if self._cells is None:
            return None
        rows = self._cells[np.argsort(self._cells["cell"], kind="stable")]
        unknown = self._coverage.unknown_fields(rows["cell"])
        fields = {
            name: numbers(rows["fields"][:, index].astype(np.int64), unknown[:, index])
            for index, name in enumerate(FIELDS)
        }
        where = _key_arrays(np.unravel_index(rows["cell"], CELLS_SHAPE))
        return pa.table({"step": _step_array(rows["step"]), **where, **fields})

    def batches(self) -> pa.Table | None:
        """The `batches` table; None if no step came with any."""
        if not any(map(len, self._batches)):
            return None
        self._batches = [np.concatenate(self._batches)]
        return batches_table(self._batches[0])


def batches_table(rows: npt.NDArray[np.void]) -> pa.Table:
    """The `batches` table of rows of `BATCH_ROW`."""
    columns = {}
    for name in BATCH_ROW.names or ():
        values = rows[name]
        if name == "slowest_file":
            names = [value.decode(errors="replace") or None for value in values.tolist()]
            columns[name] = texts(names)
        else:
            columns[name] = numbers(values, values < 0)
    return pa.table(columns)


def latency_table(buckets: npt.NDArray[np.uint64]) -> pa.Table:
    """The `latency` table: the non-zero buckets of histograms (op, class, role, BUCKETS)."""
    op, file_class, role, bucket = np.nonzero(buckets)
    counts = buckets[op, file_class, role, bucket].astype(np.int64)
    return pa.table(
        {
            **_key_arrays((op, file_class, role)),
            "bucket": numbers(bucket.astype(np.int8)),
            "count": numbers(counts),
        }
    )


def encode(table: pa.Table) -> bytes:
    """`table` as a Parquet file; every number is kept exactly."""
    keys = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    encoding = {
        field.name: "BYTE_STREAM_SPLIT"
        if pa.types.is_floating(field.type)
        else "DELTA_BYTE_ARRAY"
        if pa.types.is_string(field.type)
        else "DELTA_BINARY_PACKED"
        for field in table.schema
        if field.name not in keys and not pa.types.is_boolean(field.type)
    }
    stream = pa.BufferOutputStream()
    pq.write_table(
        table,
        stream,
        compression="zstd",
        compression_level=3,
        use_dictionary=keys,
        column_encoding=encoding,
        write_page_checksum=True,
        store_schema=False,  # 4.6 bytes a step for what only Arrow reads: the names as dictionaries
        # Readers skip parts by step; bounds of the other columns would only cost bytes.
        write_statistics=["step"] if "step" in table.column_names else False,
    )
    return bytes(stream.getvalue())


def _compact_rows(batch: StepTable) -> npt.NDArray[np.void]:
    rows = np.empty(len(batch), _ROW)
    rows["step"], rows["epoch"], rows["start_ns"] = batch.step, batch.epoch, batch.start_ns
    rows["values"] = batch.metric_matrix()
    return rows


def _compact_cells(steps: npt.NDArray[np.int64], cells: StepCells) -> npt.NDArray[np.void]:
    """The cells in which anything happened; a sleep may add time to a step without a count."""
    numbers, at = np.unique(cells.places // len(FIELDS), return_inverse=True)
    plain = np.zeros((len(steps), len(numbers), len(FIELDS)), np.uint64)
    plain[:, at, cells.places % len(FIELDS)] = cells.values
    row, cell = np.nonzero(plain.any(axis=-1))
    rows = np.empty(len(row), _CELL_ROW)
    rows["step"], rows["cell"], rows["fields"] = steps[row], numbers[cell], plain[row, cell]
    return rows


def _step_array(steps: npt.NDArray[np.int64]) -> pa.Array:
    return numbers(steps, steps == SETUP)


def _metric_array(metric: Metric, values: npt.NDArray[np.float64]) -> pa.Array:
    missing = ~np.isfinite(values)
    if metric.kind is not MetricKind.SUM:
        return numbers(values.astype(np.float32), missing)
    return numbers(np.rint(np.where(missing, 0.0, values)).astype(np.int64), missing)


def _key_arrays(indices: tuple[npt.NDArray[np.intp], ...]) -> dict[str, pa.Array]:
    return {
        name: pa.DictionaryArray.from_arrays(
            numbers(index.astype(np.int8)), texts([member.name.lower() for member in enum])
        )
        for (name, enum), index in zip(_AXES.items(), indices, strict=True)
    }
