"""Reading Parquet files that may be cut short, foreign or damaged."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trainobs.core.errors import RunLogError


def why_unreadable(path: Path, columns: Collection[str]) -> str | None:
    """Why a file cannot be used, or None if its footer is whole and it has `columns`."""
    try:
        found = pq.read_schema(path).names
    except (pa.ArrowException, OSError) as error:
        return f"not a whole Parquet file ({_first_line(error)})"
    missing = [name for name in columns if name not in found]
    return f"without the columns {', '.join(missing)}" if missing else None


def read_columns(path: Path, columns: Iterable[str]) -> pa.Table:
    """Some columns of a file; one that an older version did not write yet is left out.

    Raises:
        RunLogError: the file is damaged behind its footer, or gone.
    """
    try:
        wanted = set(columns)
        known = [name for name in pq.read_schema(path).names if name in wanted]
        return pq.read_table(
            path, columns=known, partitioning=None, page_checksum_verification=True
        )
    except (pa.ArrowException, OSError) as error:
        raise RunLogError(
            failed="A part of the run log cannot be read.",
            found=f"{path}: {_first_line(error)}",
            do="restore that file, or move it away: the rest of the run is readable without it",
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
