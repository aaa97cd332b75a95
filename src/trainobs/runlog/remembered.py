"""Which files of a run log are whole: looked at when they are needed, and again if they changed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trainobs.runlog import parquet
from trainobs.runlog.columns import Columns

_OLD_NS = 10**9
"""Age from which a file with the same time is the same: clocks of file systems are coarse."""

_MOST = 1 << 15
"""Files that are remembered, in some 300 bytes each."""


class WholeFiles(Mapping[str, tuple[Path, ...]]):
    """Table -> its files that can be read; those of a table are looked at when it is asked for.

    Args:
        files: table -> all of its files, in the order of steps.
        columns: table -> what is in it.
    """

    def __init__(self, files: Mapping[str, Sequence[Path]], columns: Mapping[str, Columns]) -> None:
        self._files, self._columns = files, columns
        self._reasons: dict[str, dict[Path, str | None]] = {}

    def __getitem__(self, table: str) -> tuple[Path, ...]:
        return tuple(file for file, reason in self._look(table).items() if reason is None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def has(self, table: str) -> bool:
        """Whether a file of a table can be read; no more of them are looked at than that takes."""
        columns = self._columns[table]
        return any(why_unreadable(file, columns) is None for file in self._files.get(table, ()))

    def unreadable(self) -> dict[Path, str]:
        """The others -> why, of all tables."""
        found = (item for table in self for item in self._look(table).items())
        return {file: reason for file, reason in found if reason}

    def _look(self, table: str) -> dict[Path, str | None]:
        if table not in self._reasons:
            columns = self._columns[table]
            own = self._files.get(table, ())
            self._reasons[table] = {file: why_unreadable(file, columns) for file in own}
        return self._reasons[table]


def why_unreadable(path: Path, columns: Columns) -> str | None:
    """What `parquet.why_unreadable` finds; a file that was whole, and is as it was, is not read."""
    state = _state(path, columns)
    if state in _whole:
        return None
    reason = parquet.why_unreadable(path, columns)
    if state is not None and reason is None:
        if len(_whole) >= _MOST:
            _whole.clear()
        _whole.add(state)
    return reason


_whole: set[tuple[object, ...]] = set()


def _state(path: Path, columns: Columns) -> tuple[object, ...] | None:
    """Differs if the file does; None where that cannot be told."""
    try:
        about = path.stat()
    except OSError:
        return None
    if time.time_ns() - about.st_ctime_ns < _OLD_NS:
        return None
    times = about.st_mtime_ns, about.st_ctime_ns
    return (path, columns, about.st_dev, about.st_ino, about.st_size, *times)
