"""Sinks of rows that are not one a step: they hold what the disk refuses, and write it in parts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from trainobs.core.records import StepTable
from trainobs.core.sink import Sink
from trainobs.runlog.schema import part_file
from trainobs.runlog.store import store
from trainobs.runlog.table import Table

Rows = npt.NDArray[np.void]


class HoldingSink(Sink):
    """Holds rows while the disk refuses them, and counts the steps of those that it cannot hold.

    Args:
        run_dir: directory of the run.
        rank: this process in the job.

    Attributes:
        held_rows: rows that are held while the disk refuses them; what follows is lost, counted.
        lost_steps: steps between the last rows that were held and those that were lost.
    """

    held_rows: ClassVar[int]
    ends_first = True

    def __init__(self, run_dir: Path, rank: int) -> None:
        self._run_dir = run_dir
        self._rank = rank
        self._part = 0
        self._steps = 0
        self._took = self._lost = False

    def write(self, table: StepTable) -> None:
        """Count these steps as lost if their rows were, or those of steps since the last rows."""
        self._steps += table.step_count
        if self._lost:
            self.lost_steps += self._steps
        if self._took or self._lost:
            self._steps, self._took, self._lost = 0, False, False

    def look(self) -> None:
        """Take what came since."""
        self._ask(is_last=False)

    def end(self, summary: dict[str, object]) -> None:
        """Write the last ones."""
        with suppress(OSError):
            self.flush()  # what is held may leave no room for them
        self._ask(is_last=True)
        self.flush()

    def _ask(self, *, is_last: bool) -> None:
        """Take what is new, where rows do not come with the steps."""

    def _has_room(self, held: int, new: int) -> bool:
        """Whether some more rows are held beside those that are; else they are lost."""
        has_room = not held or held + new <= self.held_rows
        self._took |= has_room
        self._lost |= not has_room
        return has_room

    def _store(self, name: str, table: Table) -> None:
        path = part_file(self._run_dir, self._rank, name, self._part)
        path.parent.mkdir(parents=True, exist_ok=True)  # someone may have removed it
        store(path, table)


class RowSink(HoldingSink):
    """Writes the rows of one table; the part that is still open is written anew at each flush.

    Attributes:
        table: name of the table.
        row: what a row holds.
        seal_rows: rows in a part.
    """

    table: ClassVar[str]
    row: ClassVar[np.dtype[np.void]]
    seal_rows: ClassVar[int]

    def __init__(self, run_dir: Path, rank: int) -> None:
        super().__init__(run_dir, rank)
        self._rows = np.empty(0, self.row)
        self._new: list[Rows] = []
        self._held = 0
        self._stored = 0

    def hold(self, rows: Rows) -> None:
        """Take rows, in order."""
        if len(rows) and self._has_room(self._held, len(rows)):
            self._new.append(rows)
            self._held += len(rows)

    def flush(self) -> None:
        """Bring the files up to date.

        Raises:
            OSError: the disk refused; the rows are kept.
        """
        if self._stored == self._held:
            return
        self._rows = np.concatenate([self._rows, *self._new])
        self._new.clear()
        while self._held > self._stored:
            part = self._rows[: self.seal_rows]
            self._store(self.table, self.encoded(part))
            self._stored = len(part)
            if len(part) == self.seal_rows:
                self._rows = self._rows[self.seal_rows :].copy()
                self._held, self._stored, self._part = len(self._rows), 0, self._part + 1

    def stored_rows(self) -> Mapping[str, int]:
        """Those of its table."""
        rows = self._part * self.seal_rows + self._stored
        return {self.table: rows} if rows else {}

    def encoded(self, rows: Rows) -> Table:
        """The table of a part."""
        raise NotImplementedError
