"""The run log's table of arrivals: when this rank came to the collectives of the job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from trainobs.core.sink import Sink
from trainobs.runlog.columns import TABLES
from trainobs.runlog.schema import ARRIVALS, part_file
from trainobs.runlog.store import store
from trainobs.runlog.table import Table

SEAL_ROWS = 8192
"""Rows in a part, some 40 kB."""

ALL = 4096
"""Collectives of a group that are all kept."""

BLOCK = 512
"""After those, one block of neighbours in eight is kept: chosen by number, so that ranks agree."""

HELD_ROWS = 8 * SEAL_ROWS
"""Rows kept while the disk refuses them."""

Row = tuple[int, ...]
"""A collective: a number for each column of the table."""


def is_kept(seq: int) -> bool:
    """Whether a collective of this number goes into the run log."""
    return seq < ALL or seq // BLOCK % 8 == 0


class ArrivalsSink(Sink):
    """Writes `arrivals-*.parquet`.

    The kept collectives of a rank, in the order in which torch recorded them. Those of other ranks
    have the same numbers, so that the tables of all ranks tell who came when.

    Args:
        run_dir: directory of the run.
        rank: this process in the job.
        take: what arrived since it was asked last; asked with True for the last time.
    """

    name = "log of arrivals"

    def __init__(self, run_dir: Path, rank: int, take: Callable[[bool], Sequence[Row]]) -> None:
        self._run_dir = run_dir
        self._rank = rank
        self._take = take
        self._rows: list[Row] = []
        self._stored = 0
        self._part = 0

    def look(self) -> None:
        """Take what arrived."""
        self._keep(self._take(False))

    def flush(self) -> None:
        """Bring the file up to date.

        Raises:
            OSError: the disk refused; the rows are kept.
        """
        while len(self._rows) > self._stored:
            part = self._rows[:SEAL_ROWS]
            path = part_file(self._run_dir, self._rank, ARRIVALS, self._part)
            columns = TABLES[ARRIVALS]
            values = zip(columns, np.array(part, np.int64).T, strict=True)
            store(path, Table(columns, {column.name: value for column, value in values}))
            self._stored = len(part)
            if len(part) == SEAL_ROWS:
                self._rows = self._rows[SEAL_ROWS:]
                self._stored, self._part = 0, self._part + 1

    def end(self, summary: dict[str, object]) -> None:
        """Write the last ones."""
        self._keep(self._take(True))
        self.flush()

    def _keep(self, rows: Sequence[Row]) -> None:
        kept = [row for row in rows if is_kept(row[1])]
        self._rows += kept[: max(0, HELD_ROWS - len(self._rows))]
