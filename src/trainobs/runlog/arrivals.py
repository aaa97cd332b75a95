"""The run log's table of arrivals: when this rank came to the collectives of the job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from trainobs.runlog.columns import TABLES
from trainobs.runlog.row_sink import Rows, RowSink
from trainobs.runlog.schema import ARRIVALS
from trainobs.runlog.table import Table, by_field

ALL = 4096
"""Collectives of a group that are all kept."""

BLOCK = 512
"""After those, one block of neighbours in eight is kept: chosen by number, so that ranks agree."""

Row = tuple[int, ...]
"""A collective: a number for each column of the table."""


def is_kept(seq: int) -> bool:
    """Whether a collective of this number goes into the run log."""
    return seq < ALL or seq // BLOCK % 8 == 0


class ArrivalsSink(RowSink):
    """Writes `arrivals-*.parquet`.

    The kept collectives of a rank, in the order in which torch recorded them. Those of other ranks
    have the same numbers, so that the tables of all ranks tell who came when.

    Args:
        run_dir: directory of the run.
        rank: this process in the job.
        take: what arrived since it was asked last; asked with True for the last time.
    """

    name = "log of arrivals"
    table = ARRIVALS
    row = np.dtype([(column.name, "<i8") for column in TABLES[ARRIVALS]])
    seal_rows = 8192  # some 40 kB
    held_rows = 8 * seal_rows

    def __init__(self, run_dir: Path, rank: int, take: Callable[[bool], Sequence[Row]]) -> None:
        super().__init__(run_dir, rank)
        self._take = take

    def encoded(self, rows: Rows) -> Table:
        """The table `arrivals` of these rows."""
        return Table(TABLES[ARRIVALS], by_field(rows))

    def _ask(self, *, is_last: bool) -> None:
        kept = [row for row in self._take(is_last) if is_kept(row[1])]
        self.hold(np.array(kept, self.row))
