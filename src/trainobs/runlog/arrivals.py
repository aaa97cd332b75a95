"""The run log's table of arrivals: when this rank came to the collectives of the job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
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

    def look(self) -> None:
        """Take what arrived."""
        self._keep(self._take(False))

    def end(self, summary: dict[str, object]) -> None:
        """Write the last ones."""
        with suppress(OSError):
            self.flush()  # what is held may leave no room for them
        self._keep(self._take(True))
        super().end(summary)

    def encoded(self, rows: Rows) -> Table:
        """The table `arrivals` of these rows."""
        return Table(TABLES[ARRIVALS], by_field(rows))

    def _keep(self, rows: Sequence[Row]) -> None:
        self.hold(np.array([row for row in rows if is_kept(row[1])], self.row))
