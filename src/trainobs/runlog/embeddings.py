"""The run log's table of embedding lookups: one row a step and table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainobs.core.embedding_table import LOOKUP_ROW
from trainobs.core.records import RunInfo, StepTable
from trainobs.core.sink import Sink
from trainobs.runlog.columns import tables_of_run
from trainobs.runlog.schema import EMBEDDINGS, part_file
from trainobs.runlog.store import store
from trainobs.runlog.table import Table, by_field

SEAL_ROWS = 16_384
"""Rows in a part, 2.4 MB in memory. Parts are sealed by rows, not with those of the steps: a model
may have a thousand tables, and the open part is written anew at each flush."""

HELD_ROWS = 16 * SEAL_ROWS
"""Rows kept while the disk refuses them; what follows is lost, counted."""


class EmbeddingsSink(Sink):
    """Writes `embeddings-*.parquet`; no file in a run that looks nothing up.

    Args:
        run_dir: directory of the run.
        rank: this process in the job.
    """

    name = "log of lookups"

    def __init__(self, run_dir: Path, rank: int) -> None:
        self._run_dir = run_dir
        self._rank = rank
        self._info: RunInfo | None = None
        self._rows = np.empty(0, LOOKUP_ROW)
        self._new: list[npt.NDArray[np.void]] = []
        self._held = 0
        self._stored = 0
        self._part = 0

    def begin(self, info: RunInfo) -> None:
        """Note where the tables' names will be."""
        self._info = info

    def write(self, batch: StepTable) -> None:
        """Take the lookups of the next closed steps."""
        rows = batch.lookups
        if rows is None or not len(rows):
            return
        if self._held and self._held + len(rows) > HELD_ROWS:
            self.lost_steps += len(np.unique(rows["step"]))
            return
        self._new.append(rows)
        self._held += len(rows)

    def flush(self) -> None:
        """Bring the files up to date.

        Raises:
            OSError: the disk refused; the rows are kept.
        """
        if not self._new and self._stored == self._held:
            return
        self._rows = np.concatenate([self._rows, *self._new])
        self._new.clear()
        names = [table.name for table in self._info.tables] if self._info else []
        while self._held > self._stored:
            part = self._rows[:SEAL_ROWS]
            path = part_file(self._run_dir, self._rank, EMBEDDINGS, self._part)
            path.parent.mkdir(parents=True, exist_ok=True)  # someone may have removed it
            store(path, embeddings_table(part, names))
            self._stored = len(part)
            if len(part) == SEAL_ROWS:
                self._rows = self._rows[SEAL_ROWS:].copy()
                self._held, self._stored, self._part = len(self._rows), 0, self._part + 1

    def end(self, summary: dict[str, object]) -> None:
        """Write the last ones."""
        self.flush()


def embeddings_table(rows: npt.NDArray[np.void], names: list[str]) -> Table:
    """The `embeddings` table of rows of `LOOKUP_ROW`, ordered by table, then step.

    So each column is a run of similar numbers, and takes next to nothing.

    Args:
        rows: in the order of steps.
        names: of the run's tables.
    """
    ordered = rows[np.argsort(rows["table"], kind="stable")]
    return Table(tables_of_run(names)[EMBEDDINGS], by_field(ordered))
