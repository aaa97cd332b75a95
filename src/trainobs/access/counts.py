"""Access counts of embedding tables: how often each row was looked up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainobs.access.dense import BYTES_PER_ROW, Dense
from trainobs.access.file import CountsRecord, TableRecord, files_in, read, write
from trainobs.access.given import check_ids, check_lengths, checked_tables
from trainobs.access.input_sample import InputSample, Reservoir
from trainobs.access.input_steps import CountedSteps, StepTotals
from trainobs.access.plan import plan
from trainobs.access.pool import BYTES_PER_ENTRY, CounterPool
from trainobs.access.ranking import Ranking
from trainobs.access.sketch import Blocks, Sketch, joined, rows_among
from trainobs.access.spectrum import Spectrum
from trainobs.core.arguments import check_whole
from trainobs.core.errors import AccessCountsError, SettingError, a_type

DEFAULT_BUDGET_BYTES = 64 << 20
PIECE = 1 << 16
"""Lookups that are handled at once, so that a large batch takes no more memory than a small."""
EPOCHS_KEPT = 4
"""Epochs whose inputs are sampled: the first and the latest."""


class AccessCounts:
    """How often each row of each table was looked up, in bounded memory.

    Small tables have a counter a row and are exact. The rows in use of large tables share a pool:
    exact while they fit it, afterwards a Misra-Gries summary whose error is known. Beside the
    counts a uniform sample of whole inputs is kept for each epoch.

    One thread at a time may use it.

    Args:
        tables: name -> number of rows.
        budget_bytes: memory for everything here together. Arrays that a method returns, and the
            caller's own, are not in it.
        seed: of the sample of inputs; by default another one each time. Objects that are to be
            merged must not share one.

    Raises:
        SettingError: the budget is too small for so many tables, or a number of rows is negative.

    Example:
        >>> counts = AccessCounts({"user": 1000, "item": 50_000_000})
        >>> counts.add("user", np.array([7, 7, 3]))
        >>> counts.hottest("user", 1)
        (array([7]), array([2], dtype=uint64))
    """

    def __init__(
        self,
        tables: Mapping[str, int],
        *,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        seed: int | None = None,
    ) -> None:
        checked = checked_tables(tables)
        self.budget_bytes = check_whole(budget_bytes, "budget_bytes", 0)
        self._begin(checked)
        self._random = np.random.default_rng(None if seed is None else check_whole(seed, "seed", 0))

    def _begin(self, tables: dict[str, int]) -> None:
        """Count these tables, from nothing."""
        self._plan = shares = plan(tables, self.budget_bytes)
        dense = {name: Dense(tables[name]) for name in shares.dense}
        pooled = [name for name in tables if name not in dense]
        rows = [tables[name] for name in pooled]
        self._pool = CounterPool(rows, shares.entry_count, shares.pending_count)
        self._tables, self._dense = tables, dense
        self._in_pool = {name: at for at, name in enumerate(pooled)}
        self._totals = dict.fromkeys(tables, 0)
        self._outside = dict.fromkeys(tables, 0)
        self._merged_errors = dict.fromkeys(tables, 0)
        self._steps: CountedSteps | None = None
        self._reservoirs: dict[int, Reservoir] = {}

    @property
    def tables(self) -> Mapping[str, int]:
        """Name -> number of rows."""
        return MappingProxyType(self._tables)

    @property
    def steps(self) -> CountedSteps | None:
        """How many steps looked rows up, and how many of them were counted; None: not told."""
        return self._steps

    @property
    def is_of_some_steps(self) -> bool:
        """Whether other steps, which were not counted, looked rows up, too."""
        return self._steps is not None and self._steps.counted < self._steps.passed

    def pass_steps(self, passed: int, counted: int) -> None:
        """Say that `passed` more steps looked rows up, `counted` of which `add` got."""
        before = self._steps or CountedSteps(0, 0)
        self._steps = CountedSteps(before.passed + passed, before.counted + counted)

    @property
    def counter_bytes(self) -> int:
        """What counters take at most."""
        pool = self._plan.entry_count * BYTES_PER_ENTRY + self._plan.pending_count * 8
        return pool + BYTES_PER_ROW * sum(self._tables[name] for name in self._dense)

    @property
    def sketched(self) -> tuple[str, ...]:
        """Tables without a counter for each row."""
        return tuple(self._in_pool)

    def add(
        self, table: str, ids: NDArray[np.integer[Any]], at: NDArray[np.intp] | None = None
    ) -> None:
        """Count a lookup for each of `ids`.

        Args:
            table: one of `tables`.
            ids: rows, one-dimensional, in any order, repeated as they were looked up. What is
                no row of the table is counted by `outside`.
            at: places in `ids` of those to count; by default all.

        Raises:
            SettingError: there is no such table, or `ids` is not a one-dimensional array of
                integers.
        """
        self._row_count(table)
        check_ids(f"cannot count lookups of table {table!r}", ids)
        for first in range(0, len(ids if at is None else at), PIECE):
            piece = slice(first, first + PIECE)
            if at is None:
                self._add(table, ids[piece], None)
            else:
                self._add(table, ids, at[piece])

    def _add(self, table: str, ids: NDArray[np.integer[Any]], at: NDArray[np.intp] | None) -> None:
        dense = self._dense.get(table)
        if at is not None and (dense is None or ids.dtype != np.int64):
            ids, at = ids.take(at), None
        rows = ids.astype(np.int64, copy=False)
        if dense is not None:
            outside = dense.add(rows, at)
        else:
            inside = rows_among(rows, self._tables[table])
            self._pool.add(self._in_pool[table], inside)
            outside = len(rows) - len(inside)
        self._outside[table] += outside
        self._totals[table] += len(rows if at is None else at) - outside

    def total(self, table: str) -> int:
        """Lookups of rows of the table."""
        self._row_count(table)
        return self._totals[table]

    def outside(self, table: str) -> int:
        """Lookups of ids that are no rows of the table; they are in no other number."""
        self._row_count(table)
        return self._outside[table]

    def error(self, table: str) -> int:
        """By how much a count of this table can be too low; 0 if they are exact."""
        self._row_count(table)
        pooled = table in self._in_pool
        if pooled:
            self._pool.settle()
        own = self._pool.errors[self._in_pool[table]] if pooled else 0
        return own + self._merged_errors[table]

    def counts(self, table: str) -> NDArray[np.uint64] | Sketch:
        """Lookups of every row if the table has a counter for each, otherwise a `Sketch`."""
        error = self.error(table)
        if table in self._dense and not error:
            return self._dense[table].counts()
        return Sketch(*joined(self.blocks(table)), error, self._totals[table])

    def counters(self, table: str) -> NDArray[np.unsignedinteger[Any]] | Sketch:
        """As `counts`, without a copy where that can be; not to be kept nor written to."""
        if table in self._dense and not self.error(table):
            return self._dense[table].counters()
        return self.counts(table)

    def blocks(self, table: str) -> Blocks:
        """Rows and their counts as in a `Sketch`, a bounded number at a time."""
        self._row_count(table)
        if table in self._dense:
            return self._dense[table].blocks()
        return self._pool.blocks(self._in_pool[table])

    def spectrum(self, table: str) -> Spectrum:
        """How many rows of the table have which count: what the functions of `skew` take."""
        error = self.error(table)
        blocks = self.blocks(table)
        return Spectrum.from_blocks(blocks, self._tables[table], self._totals[table], error)

    def hottest(self, table: str, n: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """The `n` rows that were looked up most, and their counts, descending.

        Of rows with the same count the lower is first. Rows that were never looked up, or of which
        a sketch has lost sight, are not among them.

        Raises:
            SettingError: there is no such table, or `n` is no number of rows.
        """
        most = check_whole(n, "n", least=0)
        limit = Ranking.from_spectra([self.spectrum(table)], [1]).fill(most).limits[0]
        ids, counts = limit.hot(self.blocks(table))
        order = np.lexsort((ids, ~counts))
        return ids[order], counts[order]

    def add_inputs(
        self,
        tables: Sequence[str],
        ids: NDArray[np.integer[Any]],
        lengths: NDArray[np.integer[Any]],
        *,
        epoch: int = 0,
        step_totals: StepTotals | None = None,
    ) -> None:
        """Offer the inputs of a batch to the sample. It counts nothing: that is what `add` does.

        The arguments are those of a KeyedJaggedTensor. All keys of a batch belong into one call: an
        input is whole only with all its lookups.

        Args:
            tables: the table that each key looks up; several keys may have the same one.
            ids: rows, key after key, and input after input within a key.
            lengths: lookups of each key and input, of shape (keys, inputs).
            epoch: where the inputs belong. Of more than `EPOCHS_KEPT` epochs the first and the
                latest are kept.
            step_totals: of the step that they are of, where some steps of a run are counted.

        Raises:
            SettingError: there is no such table, `ids` or `lengths` are no integers, or do not fit
                each other.
        """
        check_ids("cannot sample the inputs of a batch", ids)
        check_lengths("cannot sample the inputs of a batch", len(tables), ids, lengths)
        for table in tables:
            self._row_count(table)
        index = {name: at for at, name in enumerate(self._tables)}
        reservoir = self._reservoir(epoch)
        if reservoir is not None:
            reservoir.offer(
                self._random.random((lengths.shape[1],)),
                np.array([index[table] for table in tables], np.int32),
                ids,
                lengths.astype(np.int64, copy=False),
                list(self._tables),
                step_totals,
            )

    def inputs(self) -> dict[int, InputSample]:
        """The sampled inputs of each epoch that is kept, earliest first."""
        return {epoch: self._reservoirs[epoch].sample() for epoch in sorted(self._reservoirs)}

    def merge(self, other: AccessCounts) -> None:
        """Add what another object counted: of another rank, another run, other tables.

        Nothing is lost but what the budget of this object cannot hold, and that is in `error`.

        Raises:
            AccessCountsError: a table has another number of rows there; nothing was changed.
            SettingError: `other` is this object, or no `AccessCounts`.
        """
        if other is self or not isinstance(other, AccessCounts):
            found = "the object itself" if other is self else a_type(other)
            raise SettingError(
                "cannot merge access counts", found, "give an AccessCounts that counted elsewhere"
            )
        self._merge(other._record())

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything to a file, which is replaced when all of it is written.

        Raises:
            OSError: the directory is missing or not writable, or the disk is full; a file that was
                there is as before.
        """
        write(self._record(), Path(path))

    @classmethod
    def load(cls, path: str | PathLike[str], *, budget_bytes: int | None = None) -> AccessCounts:
        """Read a file that `save` wrote, or merge all of a directory, such as RUN/access-counts.

        Args:
            path: a file, a directory with files `rank=N.npz`, or a run directory.
            budget_bytes: by default that of the first file. A file is then read back exactly; of
                several, what does not fit together is in `error`.

        Raises:
            AccessCountsError: there is nothing to read, or it is damaged or from a newer trainobs,
                or tables of the same name have different numbers of rows.
            SettingError: the budget is too small for so many tables.
        """
        first, *others = files_in(Path(path))
        record = read(first)
        budget = record.budget_bytes if budget_bytes is None else budget_bytes
        try:
            counts = cls(record.row_counts, budget_bytes=budget)
            counts._absorb(record)
        except MemoryError as error:
            raise AccessCountsError(
                f"cannot read access counts from {path}",
                f"counts in {budget:,} bytes, which this machine does not give",
                "give a smaller budget_bytes",
            ) from error
        for other in others:
            counts._merge(read(other))  # one at a time: there may be many ranks
        return counts

    def samples(self) -> dict[int, tuple[InputSample, float]]:
        """As `inputs`, each with the draw below which all of its inputs are: for merging."""
        inputs = self.inputs()  # first: it may lower the thresholds
        return {e: (sample, self._reservoirs[e].threshold) for e, sample in inputs.items()}

    def _record(self) -> CountsRecord:
        tables = {}
        for name, rows in self._tables.items():
            numbers = (rows, self._totals[name], self._outside[name], self.error(name))
            tables[name] = TableRecord(partial(self.blocks, name), *numbers)
        return CountsRecord(self.budget_bytes, tables, self.samples(), self._steps)

    def _merge(self, other: CountsRecord) -> None:
        theirs = other.row_counts
        for table in self._tables.keys() & theirs.keys():
            if self._tables[table] != theirs[table]:
                raise AccessCountsError(
                    f"cannot merge access counts of table {table!r}",
                    f"{self._tables[table]:,} rows here, {theirs[table]:,} there",
                    "merge counts of the same model only",
                )
        if not theirs.keys() <= self._tables.keys():
            before = copy(self)._record()
            self._begin(checked_tables({**self._tables, **theirs}))
            self._absorb(before)
        self._absorb(other)

    def _absorb(self, other: CountsRecord) -> None:
        if self._steps is None and not any(self._totals.values()):
            self._steps = other.steps
        elif self._steps is None or other.steps is None:
            self._steps = None
        else:
            self.pass_steps(*other.steps)
        for name, table in other.tables.items():
            self._totals[name] += table.total
            self._outside[name] += table.outside
            self._merged_errors[name] += table.error
            for ids, counts in table.blocks():
                if name in self._dense:
                    self._dense[name].put(ids, counts)
                else:
                    self._pool.put(self._in_pool[name], ids, counts)
        order = {name: at for at, name in enumerate(self._tables)}
        here = np.array([order[name] for name in other.tables], np.int32)
        for epoch, (sample, threshold) in other.samples.items():
            reservoir = self._reservoir(epoch)
            if reservoir is not None:
                reservoir.absorb(replace(sample, tables=here[sample.tables]), threshold)

    def _row_count(self, table: str) -> int:
        try:
            return self._tables[table]
        except KeyError:
            names = ", ".join(list(self._tables)[:8]) + (", ..." if len(self._tables) > 8 else "")
            raise SettingError(
                "cannot count or tell accesses", f"no table {table!r}", f"use one of: {names}"
            ) from None

    def _reservoir(self, epoch: int) -> Reservoir | None:
        """The sample of an epoch; None for one that is not kept any more."""
        if epoch not in self._reservoirs:
            epochs = sorted((*self._reservoirs, epoch))
            kept = {*epochs[:1], *epochs[1 - EPOCHS_KEPT :]}
            if epoch not in kept:
                return None
            share = self._plan.inputs_bytes // min(len(epochs), EPOCHS_KEPT)
            self._reservoirs = {e: r for e, r in self._reservoirs.items() if e in kept}
            for reservoir in self._reservoirs.values():
                reservoir.resize(share)
            self._reservoirs[epoch] = Reservoir(share)
        return self._reservoirs[epoch]
