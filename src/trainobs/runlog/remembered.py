"""Files that were looked at before, and are as they were then."""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path

from trainobs.runlog import parquet
from trainobs.runlog.columns import Columns

_OLD_NS = 10**9
"""Age from which a file with the same time is the same: clocks of file systems are coarse."""


def why_unreadable(path: Path, columns: Columns) -> str | None:
    """What `parquet.why_unreadable` finds, of a file that is as it was without reading it again."""
    try:
        about = path.stat()
    except OSError:
        return parquet.why_unreadable(path, columns)
    if time.time_ns() - about.st_mtime_ns < _OLD_NS:
        return parquet.why_unreadable(path, columns)
    return _found(path, columns, about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=1 << 15)  # files, of some 300 bytes each
def _found(path: Path, columns: Columns, *_state: int) -> str | None:
    return parquet.why_unreadable(path, columns)
