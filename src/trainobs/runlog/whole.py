"""A table of the run log, of all ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa

from trainobs.core.errors import RunLogError
from trainobs.runlog.parquet import read_whole
from trainobs.runlog.reader import RunLog


def whole_table(
    run: RunLog, table: str, unknown: Mapping[int, Collection[str]] | None = None
) -> pa.Table | None:
    """A table, with the column `rank` in front; None where the run has none.

    Args:
        run: the run log; of it the files that can be read.
        table: `STEPS`, `BATCHES` and so on.
        unknown: rank -> columns that are to be null in it.

    Raises:
        RunLogError: a file was damaged after the run was opened, or does not fit the others.
    """
    unknown, parts = unknown or {}, []
    for number, rank in run.ranks.items():
        for path in rank.files[table]:
            part = _without(read_whole(path), unknown.get(number, ()))
            parts.append(part.add_column(0, "rank", pa.array([number] * len(part), pa.int32())))
    try:
        # A column that came up later, or in one rank alone, is null in the others.
        return pa.concat_tables(parts, promote_options="permissive") if parts else None
    except pa.ArrowException as error:  # columns of two types, which no run wrote
        raise RunLogError(
            failed=f"The parts of the table {table} cannot be put together.",
            found=f"{run.path}: {str(error).partition(chr(10))[0]}",
            do="restore them from where the run wrote them",
        ) from error


def _without(part: pa.Table, columns: Collection[str]) -> pa.Table:
    for at, field in enumerate(part.schema):
        if field.name in columns:
            part = part.set_column(at, field, pa.nulls(len(part), field.type))
    return part
