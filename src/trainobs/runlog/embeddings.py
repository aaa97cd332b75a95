"""The run log's table of embedding lookups: one row a step and table."""

from __future__ import annotations

import numpy as np

from trainobs.core.embedding_table import LOOKUP_ROW
from trainobs.core.records import RunInfo, StepTable
from trainobs.runlog.columns import tables_of_run
from trainobs.runlog.row_sink import Rows, RowSink
from trainobs.runlog.schema import EMBEDDINGS
from trainobs.runlog.table import Table, by_field


class EmbeddingsSink(RowSink):
    """Writes `embeddings-*.parquet`; no file in a run that looks nothing up.

    Parts are sealed by rows, not with those of the steps: a model may have a thousand tables, and
    the open part is written anew at each flush.
    """

    name = "log of lookups"
    table = EMBEDDINGS
    row = LOOKUP_ROW
    seal_rows = 16_384  # 2.4 MB in memory
    held_rows = 16 * seal_rows
    _info: RunInfo | None = None

    def begin(self, info: RunInfo) -> None:
        """Note where the tables' names will be."""
        self._info = info

    def write(self, table: StepTable) -> None:
        """Take the lookups of the next closed steps."""
        if table.lookups is not None:
            self.hold(table.lookups)
        super().write(table)

    def encoded(self, rows: Rows) -> Table:
        """The table `embeddings` of these rows."""
        return embeddings_table(rows, [t.name for t in self._info.tables] if self._info else [])


def embeddings_table(rows: Rows, names: list[str]) -> Table:
    """The `embeddings` table of rows of `LOOKUP_ROW`, ordered by table, then step.

    So each column is a run of similar numbers, and takes next to nothing.

    Args:
        rows: in the order of steps.
        names: of the run's tables.
    """
    ordered = rows[np.argsort(rows["table"], kind="stable")]
    return Table(tables_of_run(names)[EMBEDDINGS], by_field(ordered))
