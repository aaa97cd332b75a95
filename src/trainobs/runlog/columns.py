"""The columns of the run log's tables: one list, by which the writer writes and the reader checks.

A new column is a new line here, or in the catalogue, `BATCH_ROW` or `LOOKUP_FIELDS`, from which
columns are made. Give it `is_new`, or runs without it cannot be read any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from trainobs.core.abi import BUCKETS, CELL, PEER, FileClass, Op, Role
from trainobs.core.catalogue import STEP_METRICS
from trainobs.core.collectives import Collective
from trainobs.core.embedding_table import LOOKUP_FIELDS
from trainobs.core.file_rows import CACHE_ROW, FILE_BUCKETS, IO_ROW, SPREAD_ROW, WORDS
from trainobs.core.metrics import MetricKind
from trainobs.core.peer_rows import PEER_ROW
from trainobs.core.records import BATCH_ROW, SETUP, UNKNOWN
from trainobs.runlog.schema import (
    ARRIVALS,
    BATCHES,
    EMBEDDINGS,
    IO,
    IO_CACHE,
    IO_PEERS,
    IO_SPREAD,
    KERNEL,
    LATENCY,
    STEPS,
)

BOUND = 2.0**63
"""Above every number that a run log stores, and below what would turn a sum into infinity."""

TOO_LONG = 1e18
"""Above every time, ns: 30 years."""

AXES = {"op": Op, "class": FileClass, "role": Role}
NAN = float("nan")


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: as it is in the file.
        dtype: of the numbers in the file; "S" for text, which may be missing.
        missing: stands in memory for what is null in the file: a negative number, or NaN, with
            which all numbers are floats in memory; None where nothing may be null.
        least: the least number that is not damage.
        below: what all numbers are below.
        words: words in the file for the numbers 0, 1, ... in memory; None for numbers.
        is_new: whether a file is whole without it: older versions did not write it.
        is_any_number: whether other versions may have stored it as another type of number.
        spoils: whether a file in which it cannot be used is of no use, though it may be missing.
    """

    name: str
    dtype: str = "<i8"
    missing: float | None = None
    least: float = 0
    below: float = BOUND
    words: tuple[str, ...] | None = None
    is_new: bool = False
    is_any_number: bool = False
    spoils: bool = False


Columns = tuple[Column, ...]


def _words(enum: type[IntEnum]) -> tuple[str, ...]:
    return tuple(member.name.lower() for member in enum)


_STEP = Column("step", missing=SETUP)
_EPOCH = Column("epoch", "<i4", least=-1)
_CELL = tuple(Column(axis, "<i1", words=_words(enum)) for axis, enum in AXES.items())


def _metric(name: str, dtype: str) -> Column:
    column = Column(name, dtype, missing=NAN, least=-BOUND, is_new=True, is_any_number=True)
    # Steps of which nobody knows how long they took would count in all but the time of the run.
    return replace(column, spoils=name == "step/duration_ns")


_METRICS = tuple(
    _metric(metric.name, "<i8" if metric.kind is MetricKind.SUM else "<f4")
    for metric in STEP_METRICS
)


def _of_files(row: np.dtype[np.void]) -> Columns:
    """The columns of a table of files, or of peers."""
    return tuple(
        Column(
            name,
            kind.str,
            missing=UNKNOWN if name in _UNKNOWN_OF_SOME else None,
            below=FILE_BUCKETS if name == "bucket" else BOUND,
            words=_words(WORDS[name]) if name in WORDS else None,
        )
        for name, (kind, *_) in (row.fields or {}).items()
    )


_UNKNOWN_OF_SOME = {"inode", "device", "file_bytes", "own_port", "port", *(PEER.names or ())}
_NEW_OF_A_BATCH = {"sleep_ns", "fetch_begin_ns", "fetch_end_ns", "received_bytes", "handed_bytes"}

TABLES: Mapping[str, Columns] = {
    STEPS: (_STEP, _EPOCH, Column("start_ns"), *_METRICS),
    KERNEL: (_STEP, *_CELL, *(Column(field, missing=UNKNOWN) for field in CELL.names or ())),
    BATCHES: tuple(
        Column(
            name,
            kind.str,
            missing=UNKNOWN,
            below=TOO_LONG if name.endswith("_ns") else BOUND,
            is_new=name in _NEW_OF_A_BATCH,
        )
        for name, (kind, *_) in (BATCH_ROW.fields or {}).items()
    ),
    IO: _of_files(IO_ROW),
    IO_SPREAD: _of_files(SPREAD_ROW),
    IO_CACHE: _of_files(CACHE_ROW),
    IO_PEERS: _of_files(PEER_ROW),
    LATENCY: (*_CELL, Column("bucket", "<i1", below=BUCKETS), Column("count")),
    ARRIVALS: (
        Column("group", "<i4"),
        Column("seq"),
        Column("at_ns"),
        Column("kind", "<i1", missing=UNKNOWN, words=_words(Collective), is_new=True),
        Column("input_bytes", missing=UNKNOWN, is_new=True),
        Column("output_bytes", missing=UNKNOWN, is_new=True),
    ),
    EMBEDDINGS: (
        _STEP,
        _EPOCH,
        Column("table", "<i4", words=()),  # the tables of the run: see `tables_of_run`
        Column("sampled", "?"),
        *(Column(field, missing=NAN, is_new=True) for field in LOOKUP_FIELDS),
    ),
}
"""Table -> its columns, in their order."""


def brought_columns(metrics: Iterable[str]) -> Columns:
    """The columns of `STEPS` for metrics that a run brings along: `StepTable.brought`."""
    return tuple(_metric(name, "<i8") for name in metrics)


def tables_of_run(names: Sequence[str], brought: Iterable[str] = ()) -> Mapping[str, Columns]:
    """`TABLES`, for a run whose embedding tables, and metrics of its own, have these names."""
    named = (
        replace(column, words=tuple(names)) if column.name == "table" else column
        for column in TABLES[EMBEDDINGS]
    )
    steps = (*TABLES[STEPS], *brought_columns(brought))
    return {**TABLES, STEPS: steps, EMBEDDINGS: tuple(named)}
