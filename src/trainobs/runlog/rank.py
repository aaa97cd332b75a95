"""What one rank recorded, read column by column so that a long run fits into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import BUCKETS, CELL, CELLS_SHAPE, FIELDS
from trainobs.core.catalogue import METRICS, named_phase_metric
from trainobs.core.catalogue.own_counters import metrics_of_counter
from trainobs.core.coverage import Coverage
from trainobs.core.embedding_table import EmbeddingTable
from trainobs.core.own_counter import OwnCounter
from trainobs.core.records import SETUP
from trainobs.runlog.columns import AXES, NAN, TOO_LONG, Column, Columns, tables_of_run
from trainobs.runlog.parquet import Values, read_columns, read_values
from trainobs.runlog.remembered import WholeFiles
from trainobs.runlog.schema import ARRIVALS, BATCHES, EMBEDDINGS, KERNEL, LATENCY, STEPS


class RankLog:
    """The record of one rank.

    Attributes:
        rank: number of the rank.
        files: table of the run log -> its files that can be read, in the order of steps; they are
            looked at when they are first asked for.
        tables: embedding tables of the model.
        phases: those with a name of the user's.
        counters: what programs of the user's counted.
        host: name of the node, whose clock is in all times; None where unknown.
        job: what tells the job from others that wrote to the same place; None where unknown.
        has_ended: whether it wrote down how its run ended.
        clock_ns: wall clock less CLOCK_MONOTONIC as the run began; None where unknown.
        info: its own `run.json` or `rank.json`; empty where it was killed before it wrote it.
    """

    def __init__(
        self,
        rank: int,
        files: Mapping[str, Sequence[Path]],
        *,
        tables: Sequence[EmbeddingTable] = (),
        phases: Sequence[str] = (),
        counters: Sequence[OwnCounter] = (),
        host: str | None = None,
        job: str | None = None,
        has_ended: bool = False,
        clock_ns: int | None = None,
        coverage: Coverage | None = None,
        info: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.rank = rank
        brought = [*map(named_phase_metric, phases), *_names(counters)]
        columns = tables_of_run([table.name for table in tables], brought)
        self.files = WholeFiles(files, columns)
        self.tables = tuple(tables)
        self.phases = tuple(phases)
        self.counters = tuple(counters)
        self.host = host
        self.job = job
        self.has_ended = has_ended
        self.clock_ns = clock_ns
        self.info = info
        self._coverage = coverage or Coverage.whole()
        self._kept: dict[str, dict[str, npt.NDArray[Any]]] = {}
        self._cells: dict[tuple[int, ...], npt.NDArray[Any]] = {}
        self._columns = {
            table: {column.name: column for column in own} for table, own in columns.items()
        }

    def step(self) -> npt.NDArray[np.int64]:
        """Step numbers in the order of the record; `SETUP` before the first. Shape (n,)."""
        return self._step

    @cached_property
    def _step(self) -> npt.NDArray[np.int64]:
        found = self._column(STEPS, "step")
        found.flags.writeable = False  # all who ask get the same
        return found

    def start_ns(self) -> npt.NDArray[np.int64]:
        """CLOCK_MONOTONIC at the beginning of each step, ns. Shape (n,)."""
        return self._column(STEPS, "start_ns")

    def epoch(self) -> npt.NDArray[np.int64]:
        """Epoch of each step. Shape (n,)."""
        return self._column(STEPS, "epoch")

    def metric(self, name: str) -> npt.NDArray[np.float64]:
        """Values of a metric of the catalogue, NaN where it has none. Shape (n,).

        Older run logs hold zeros where a program was off; here these are unknown as well, and so
        is what no run can have measured.

        Raises:
            RunLogError: a file is damaged.
        """
        return self.metrics([name])[name]

    def metrics(self, names: Iterable[str]) -> dict[str, npt.NDArray[np.float64]]:
        """The same of several metrics, whose files are then read once.

        Raises:
            RunLogError: a file is damaged.
        """
        return self.columns(STEPS, names)

    def last(self, name: str) -> Any:
        """The value of the last step in a column of `STEPS`; only its part is read.

        Raises:
            RunLogError: a file is damaged.
        """
        column = self._about(STEPS, name)
        values = read_values(self.files[STEPS][-1], (column,))
        return self._whole(STEPS, (column,), values)[name][-1]

    def columns(self, table: str, names: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
        """Columns of numbers of a table, whose files are read once. Each of shape (n,).

        Of `STEPS` also metrics, as by `metric`.

        Raises:
            RunLogError: a file is damaged.
        """
        wanted = tuple(names)
        kept = self._kept.get(table, {})
        if kept.keys() >= set(wanted):
            return {name: kept[name] for name in wanted}
        parts = list(self.parts(table, wanted))
        found = {}
        for name in dict.fromkeys(wanted):
            missing = self._about(table, name).missing
            is_float = missing is not None and np.isnan(missing)
            empty = np.empty(0, np.float64 if is_float else np.int64)
            found[name] = np.concatenate([empty, *(part.pop(name) for part in parts)])
        return found

    @contextmanager
    def keeping(self, table: str, names: Iterable[str]) -> Iterator[None]:
        """Read columns once, for all who ask for them meanwhile; nobody may write into them.

        Raises:
            RunLogError: a file is damaged.
        """
        found = self.columns(table, names)
        for column in found.values():
            column.flags.writeable = False
        self._kept[table] = found
        try:
            yield
        finally:
            del self._kept[table]

    def cells(self, but: Sequence[int] = ()) -> npt.NDArray[np.void]:
        """Kernel cells summed over all steps but some, `CELL` of shape (op, class, role).

        What is unknown counts as 0: whoever asks knows which metrics are known.
        """
        if tuple(but) not in self._cells:  # a report asks for the first two several times
            self._cells |= self._summed_cells((), (SETUP,), tuple(but))
        return self._cells[tuple(but)]

    def _summed_cells(self, *without: tuple[int, ...]) -> dict[tuple[int, ...], npt.NDArray[Any]]:
        shape = (int(np.prod(CELLS_SHAPE)), len(FIELDS))
        totals = {but: np.zeros(shape, np.uint64) for but in without}
        for part in self.parts(KERNEL, ("step", *AXES, *FIELDS)):
            cell = np.ravel_multi_index(tuple(part[axis] for axis in AXES), CELLS_SHAPE)
            known = [np.maximum(part[field], 0).astype(np.uint64) for field in FIELDS]
            for but, total in totals.items():
                rows = ~np.isin(part["step"], but) if but else slice(None)
                begins = np.flatnonzero(np.diff(cell[rows], prepend=-1))  # ordered by cell
                for index, field in enumerate(known):
                    sums = np.add.reduceat(field[rows], begins) if len(begins) else field[:0]
                    np.add.at(total[:, index], cell[rows][begins], sums)
        return {but: total.view(CELL).reshape(CELLS_SHAPE) for but, total in totals.items()}

    def batches(self, name: str) -> npt.NDArray[np.int64]:
        """A column of the `batches` table, `UNKNOWN` where it is null. Shape (n,)."""
        return self._column(BATCHES, name)

    def slowest_file(self, index: int) -> str | None:
        """`slowest_file` of one row of the `batches` table, counted from 0."""
        return self.slowest_files([index])[0]

    def slowest_files(self, rows: Sequence[int]) -> list[str | None]:
        """`slowest_file` of some rows of the `batches` table, ascending, counted from 0."""
        found: list[str | None] = []
        wanted = np.asarray(rows, np.int64)
        ends = self._batch_ends
        for first, end, path in zip([0, *ends], ends, self.files[BATCHES], strict=False):
            own = wanted[(first <= wanted) & (wanted < end)] - first
            if len(own):
                column = read_columns(path, ["slowest_file"])["slowest_file"]
                found += [column[row].as_py() for row in own.tolist()]  # `take` imports pandas
        if len(found) < len(rows):
            raise IndexError(rows[len(found)])
        return found

    def texts(self, table: str, name: str) -> list[str | None]:
        """A column of texts of a table, of each row; None where it is null."""
        found: list[str | None] = []
        for path, rows in zip(self.files[table], self.files.rows(table), strict=True):
            found += read_columns(path, [name])[name][:rows].to_pylist()
        return found

    @cached_property
    def _batch_ends(self) -> list[int]:
        """Rows of the table `batches` up to the end of each of its files."""
        return list(accumulate(self.files.rows(BATCHES)))

    def latency(self) -> npt.NDArray[np.uint64]:
        """Latency histograms of the whole run, shape (op, class, role, BUCKETS)."""
        total = np.zeros((*CELLS_SHAPE, BUCKETS), np.uint64)
        for part in self.parts(LATENCY, (*AXES, "bucket", "count")):
            total[tuple(part[name] for name in (*AXES, "bucket"))] = part["count"]
        return total

    def arrivals(self) -> dict[tuple[int, int], int]:
        """(group, number) of a collective -> CLOCK_MONOTONIC as this rank came to it, ns."""
        found: dict[tuple[int, int], int] = {}
        for part in self.parts(ARRIVALS, ("group", "seq", "at_ns")):
            group, seq, at_ns = (column.tolist() for column in part.values())
            found.update(zip(zip(group, seq, strict=True), at_ns, strict=True))
        return found

    def lookups(self, columns: Iterable[str]) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Columns of the table of lookups, part by part, in the order of steps within a table.

        `table` is the index into `tables`, `step` is `SETUP` before the first, amounts are floats
        that are NaN where unknown.
        """
        return self.parts(EMBEDDINGS, columns)

    def _column(self, table: str, name: str) -> npt.NDArray[Any]:
        return self.columns(table, [name])[name]

    def parts(self, table: str, names: Iterable[str]) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """The same part by part. What a part does not have, or not whole, is missing, all of it.

        Raises:
            RunLogError: a file is damaged.
        """
        columns = tuple(self._about(table, name) for name in dict.fromkeys(names))
        for values in self.files.read(table, columns):
            yield self._whole(table, columns, values)

    def _whole(self, table: str, columns: Columns, values: Values) -> dict[str, npt.NDArray[Any]]:
        """What was read of some columns, or what is missing instead; of metrics what can be."""
        found = {
            column.name: values.of[column.name]
            if column.name in values.of
            else np.full(values.rows, NAN if column.missing is None else column.missing)
            for column in columns
        }
        if table == STEPS:
            metrics = [column.name for column in columns if column.is_new]
            found.update(zip(metrics, self._measured(metrics, found), strict=True))
        return found

    def _measured(
        self, names: Sequence[str], found: Mapping[str, npt.NDArray[Any]]
    ) -> Iterator[npt.NDArray[np.float64]]:
        """Values of metrics, without what their run cannot have measured."""
        if not names:
            return
        every = np.array([found[name] for name in names], np.float64)
        below = np.array([TOO_LONG if name.endswith("_ns") else np.inf for name in names])
        known = np.array([self._knows(name) for name in names])
        possible = (every >= 0) & (every < below[:, None]) & known[:, None]
        np.copyto(every, NAN, where=~possible)
        yield from (row.copy() for row in every)  # so that none keeps the others in memory

    def _knows(self, name: str) -> bool:
        return name not in METRICS or self._coverage.knows(METRICS[name].programs)

    def _about(self, table: str, name: str) -> Column:
        """A column; one that this version does not know may be a metric of another."""
        return self._columns[table].get(name, Column(name, missing=NAN, is_new=True))


def _names(counters: Iterable[OwnCounter]) -> Iterator[str]:
    return (metric.name for counter in counters for metric in metrics_of_counter(counter))
