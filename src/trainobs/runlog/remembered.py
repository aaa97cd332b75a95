"""Which files of a run log are whole: looked at when they are needed, and again if they changed.

A file is whole if the columns are without which its table is none; others are looked at as they are
read. One of these that cannot be used is unknown in its file, and told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

from trainobs.core.errors import RunLogError
from trainobs.runlog import parquet
from trainobs.runlog.columns import Columns
from trainobs.runlog.schema import EMBEDDINGS, KERNEL, LATENCY

T = TypeVar("T")

_SORTED = (KERNEL, EMBEDDINGS, LATENCY)
"""Tables of which a later row may stand in front of earlier ones, in the same file."""

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
        self._needed = {
            table: tuple(column for column in own if not column.is_new)
            for table, own in columns.items()
        }
        self._spoil = {
            table: tuple(column for column in own if column.spoils)
            for table, own in columns.items()
        }
        self._reasons: dict[str, dict[Path, str | None]] = {}
        self._read: dict[str, set[str]] = {}
        self._wrong: dict[Path, set[str]] = {}
        self._rows: dict[Path, int] = {}

    def __getitem__(self, table: str) -> tuple[Path, ...]:
        return tuple(file for file, reason in self._look(table).items() if reason is None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def has(self, table: str) -> bool:
        """Whether a file of a table can be read; no more of them are looked at than that takes."""
        needed = self._needed[table]
        return any(why_unreadable(file, needed) is None for file in self._files.get(table, ()))

    def read(self, table: str, columns: Columns = ()) -> Iterator[parquet.Values]:
        """Some columns, or those that are needed, of each file that can be read.

        Files that were not looked at yet are looked at meanwhile. Of one that grows, as while its
        run goes on, those rows are told that were there first, so that columns fit each other.

        Raises:
            RunLogError: a file was damaged after it was found readable.
        """
        known, needed = self._reasons.get(table), self._needed[table]
        looked_at = (*needed, *self._spoil[table], *columns)
        wanted = tuple(dict.fromkeys(looked_at)) if known is None else columns or needed
        reasons: dict[Path, str | None] = {}
        for file in self._files.get(table, ()) if known is None else self[table]:
            if known is not None:
                found: parquet.Values | str = parquet.read_values(file, wanted)
            else:
                found = self._unless_spoilt(table, parquet.values_or_reason(file, wanted))
                reasons[file] = found if isinstance(found, str) else None
            if not isinstance(found, str):
                self._wrong.setdefault(file, set()).update(found.wrong)
                rows = min(found.rows, self._rows.setdefault(file, found.rows))
                yield found if table in _SORTED else _first(found, rows)
        self._reasons.setdefault(table, reasons)
        self._read.setdefault(table, set()).update(column.name for column in wanted)

    def _unless_spoilt(self, table: str, found: parquet.Values | str) -> parquet.Values | str:
        spoilt = [] if isinstance(found, str) else found.wrong
        return _unusable(one.name for one in self._spoil[table] if one.name in spoilt) or found

    def rows(self, table: str) -> list[int]:
        """Rows of each file that can be read.

        Raises:
            RunLogError: as of `read`.
        """
        files = self[table]
        for file in files:
            if file not in self._rows:
                self._rows[file] = parquet.footer(file)[1]
        return [self._rows[file] for file in files]

    def unreadable(self, *tables: str) -> dict[Path, str]:
        """Files that cannot be read, or not in all columns -> why; of some tables, or of all."""
        return dict(chain.from_iterable(map(self._unreadable, tables or self)))

    def _unreadable(self, table: str) -> Iterator[tuple[Path, str]]:
        read = self._read.get(table, set())
        columns = [column for column in self._columns[table] if column.is_new]
        rest = tuple(column for column in columns if column.name not in read)
        for file, reason in self._look(table).items():
            if reason is not None:
                yield file, reason
                continue
            wrong = {*self._wrong.get(file, ()), *wrong_columns(file, rest)}
            wrong.update(_remembered(_misnamed, file, self._columns[table]) or ())
            if names := [column.name for column in columns if column.name in wrong]:
                gone = why_unreadable(file, ())  # since it was looked at first
                yield file, gone or _unusable(names)

    def _look(self, table: str) -> dict[Path, str | None]:
        if table not in self._reasons:
            needed = self._needed[table]
            own = self._files.get(table, ())
            spoil = self._spoil[table]
            self._reasons[table] = {
                file: why_unreadable(file, needed) or _unusable(wrong_columns(file, spoil)) or None
                for file in own
            }
        return self._reasons[table]


def _first(found: parquet.Values, rows: int) -> parquet.Values:
    of = {name: values[:rows] for name, values in found.of.items()}
    return parquet.Values(rows, of, found.wrong)


def _misnamed(path: Path, columns: Columns) -> list[str]:
    """Those of all columns of a table that are not there, but under a name of one other bit.

    Nothing else tells of a bit that flipped in a name: it would be a column of another version.
    """
    try:
        names = set(parquet.footer(path)[0])
    except RunLogError:  # it changed since it was looked at
        return []
    known = [column.name for column in columns]
    foreign = names - set(known)
    return [name for name in known if name not in names and any(_is_near(name, n) for n in foreign)]


def _is_near(name: str, other: str) -> bool:
    """Whether two names differ in one bit."""
    one, two = name.encode(), other.encode()
    bits = ((a ^ b).bit_count() for a, b in zip(one, two, strict=False))
    return len(one) == len(two) and sum(bits) == 1


def _unusable(names: Iterable[str]) -> str:
    found = ", ".join(names)
    return f"with unusable values in {found}" if found else ""


def why_unreadable(path: Path, columns: Columns) -> str | None:
    """What `parquet.why_unreadable` finds; a file that was whole, and is as it was, is not read."""
    return _remembered(parquet.why_unreadable, path, columns)


def wrong_columns(path: Path, columns: Columns) -> list[str]:
    """Likewise what `parquet.wrong_columns` finds."""
    return (_remembered(parquet.wrong_columns, path, columns) if columns else None) or []


def _remembered(look: Callable[[Path, Columns], T], path: Path, columns: Columns) -> T | None:
    about = _state(path, columns)
    state = None if about is None else (look.__name__, *about)
    if state in _whole:
        return None
    found = look(path, columns)
    if state is not None and not found:
        if len(_whole) >= _MOST:
            _whole.clear()
        _whole.add(state)
    return found


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
