"""The run log's tables of files and peers: what was moved of them, by epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from trainobs.core.file_rows import NOTHING, IoRows
from trainobs.runlog.columns import TABLES
from trainobs.runlog.row_sink import HoldingSink
from trainobs.runlog.schema import IO, IO_CACHE, IO_PEERS, IO_SPREAD
from trainobs.runlog.table import Table, by_field

SEAL_ROWS = 8192
"""Rows in a part, of the largest table."""

_TABLES = (IO, IO_SPREAD, IO_CACHE, IO_PEERS)


class IoSink(HoldingSink):
    """Writes `io-*.parquet`, `io_spread-*`, `io_cache-*` and `io_peers-*.parquet`.

    None of them in a run that counts no files.

    Args:
        run_dir: directory of the run.
        rank: this process in the job.
        take: what is new of epochs that are over; asked with True for the last time.
    """

    name = "log of files"
    held_rows = 8 * SEAL_ROWS

    def __init__(self, run_dir: Path, rank: int, take: Callable[[bool], IoRows]) -> None:
        super().__init__(run_dir, rank)
        self._take = take
        self._held = NOTHING
        self._is_stored = True
        self._sealed: Counter[str] = Counter()

    def flush(self) -> None:
        """Bring the files up to date.

        Raises:
            OSError: the disk refused; the rows are kept.
        """
        if self._is_stored:
            return
        # Empty ones too, so that no part is missing; the sums last, which readers begin with.
        for table, rows in reversed(tuple(zip(_TABLES, self._held, strict=True))):
            self._store(table, Table(TABLES[table], by_field(rows)))
        self._is_stored = True
        if _size(self._held) >= SEAL_ROWS:
            self._sealed += self._rows()
            self._held, self._part = NOTHING, self._part + 1

    def stored_rows(self) -> Mapping[str, int]:
        """Those of its tables, if all of them were stored."""
        return self._sealed + self._rows() if self._is_stored else {}  # without zeros

    def _rows(self) -> Counter[str]:
        return Counter(dict(zip(_TABLES, map(len, self._held), strict=True)))

    def _ask(self, *, is_last: bool) -> None:
        counted = self._take(is_last)
        if _size(counted) and self._has_room(_size(self._held), _size(counted)):
            self._held = IoRows.join([self._held, counted])
            self._is_stored = False


def _size(counted: IoRows) -> int:
    return max(map(len, counted))
