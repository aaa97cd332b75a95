"""What was read and written of files, as rows: of all files of a class, and of the largest ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import ACCESS, SIZES, TOTAL_KEY, FileClass, FileOp
from trainobs.core.peer_rows import PEER_ROW, PEER_WORDS

TOP = 32
"""Files of each class that have a row of their own in an epoch, of those read and of those written:
those of which most bytes were."""

FILE_BUCKETS = 48
"""log2 buckets of what is counted for each file."""

IO_ROW = np.dtype(
    [
        ("epoch", "<i8"),
        ("op", "<i1"),
        ("class", "<i1"),
        ("file", "S96"),
        ("inode", "<i8"),
        ("device", "<i8"),
        ("file_bytes", "<i8"),
        ("file_count", "<i8"),
        ("unlisted_count", "<i8"),
        *((name, "<i8") for name in ACCESS.names or ()),
    ]
)
"""A row of the table `io`. `file` is empty in the row of a class; there `inode`, `device` and
`file_bytes` are -1."""


class SpreadKind(IntEnum):
    """What the histograms of a class are of."""

    CALL_BYTES = 0  # calls, by the bytes that each moved
    FILE_BYTES = 1  # files, by the bytes that were moved of each
    FILE_OPENS = 2  # files, by how often each was opened


SPREAD_ROW = np.dtype(
    [
        ("epoch", "<i8"),
        ("op", "<i1"),
        ("class", "<i1"),
        ("of", "<i1"),
        ("bucket", "<i1"),
        ("count", "<i8"),
    ]
)
"""A row of the table `io_spread`: bucket b counts what is from 2**b up to 2**(b+1)."""

CACHE_ROW = np.dtype(
    [
        ("epoch", "<i8"),
        ("at_ns", "<i8"),
        ("file_count", "<i8"),
        ("is_all", "?"),
        ("sampled_count", "<i8"),
        ("sampled_bytes", "<i8"),
        ("cached_bytes", "<i8"),
        ("dirty_bytes", "<i8"),
    ]
)
"""A row of the table `io_cache`: what of the data set the page cache held as an epoch was over."""

Rows = npt.NDArray[np.void]


class IoRows(NamedTuple):
    """What was counted in some epochs: rows of `IO_ROW`, `SPREAD_ROW`, `CACHE_ROW`, `PEER_ROW`."""

    rows: Rows
    spread: Rows
    cache: Rows = np.empty(0, CACHE_ROW)
    peers: Rows = np.empty(0, PEER_ROW)

    @classmethod
    def join(cls, parts: Iterable[IoRows]) -> IoRows:
        """Several, one after another."""
        listed = [NOTHING, *parts]
        return cls(*map(np.concatenate, zip(*listed, strict=True)))


NOTHING = IoRows(np.empty(0, IO_ROW), np.empty(0, SPREAD_ROW))


_OPENED = ("open_count", "mmap_count")


class IoRowsBuilder:
    """Brings together the entries of the kernel's maps; only the largest files are kept."""

    def __init__(self) -> None:
        self._largest: dict[tuple[int, int, int], Rows] = {}
        self._files: dict[tuple[int, int, int], int] = {}
        self._spread: dict[tuple[int, int, int, int], npt.NDArray[np.int64]] = {}
        self._opened: dict[tuple[int, int, int], npt.NDArray[np.int64]] = {}

    def add(self, keys: Rows, files: Rows) -> None:
        """Take some files: `FILE_KEY` and `FILE`, each of shape (n,)."""
        columns = (keys["epoch"], keys["op"], files["class"])
        for group in _groups(columns):
            epoch, op, file_class = (int(column[group[0]]) for column in columns)
            place, own = (epoch, op, file_class), files[group]
            before = self._largest.get(place, np.empty(0, IO_ROW))
            rows = np.concatenate([before, _file_rows(keys[group], own)])
            order = np.argsort(-rows["bytes"], kind="stable")
            self._largest[place] = rows[order[:TOP]]
            self._files[place] = self._files.get(place, 0) + len(own)
            opened = [int(own["access"][name].sum()) for name in _OPENED]
            self._opened[place] = self._opened.get(place, np.zeros(2, np.int64)) + opened
            self._count(place, SpreadKind.FILE_BYTES, own["access"]["bytes"])
            self._count(place, SpreadKind.FILE_OPENS, own["access"]["open_count"])

    def counted(self, keys: Rows, totals: Rows) -> IoRows:
        """All that was taken, with the sums of the classes: `TOTAL_KEY` and `TOTAL`, (n,)."""
        rows = np.zeros(len(keys), IO_ROW)
        for name in TOTAL_KEY.names or ():
            rows[name] = keys[name]
        for name in ("inode", "device", "file_bytes"):
            rows[name] = -1
        _take_access(rows, totals["access"])
        rows["unlisted_count"] = totals["unlisted_count"]
        epochs, ops, classes = (keys[name].tolist() for name in TOTAL_KEY.names or ())
        places = list(zip(epochs, ops, classes, strict=True))
        rows["file_count"] = [self._files.get(place, 0) for place in places]
        self._class_opens(rows, places)
        for place, sizes in zip(places, totals["sizes"].astype(np.int64), strict=True):
            key = (*place, int(SpreadKind.CALL_BYTES))
            self._spread[key] = np.pad(sizes, (0, FILE_BUCKETS - SIZES))
        ordered = np.concatenate([rows, *self._largest.values()])
        order = np.lexsort((-ordered["bytes"], ordered["file"] != b"", ordered["epoch"]))
        return IoRows(ordered[order], self._spread_rows())

    def _class_opens(self, rows: Rows, places: Sequence[tuple[int, int, int]]) -> None:
        """Have opens and mappings count for the class that their file has at the end of the epoch.

        A file may become data by what is read of it, after it was opened. Where files found no
        room, nobody knows which opens were of theirs: all stay what they were as they came.
        """
        for epoch, op in {place[:2] for place in places}:
            of = [row for row, place in enumerate(places) if place[:2] == (epoch, op)]
            own = [self._opened.get(places[row], np.zeros(2, np.int64)) for row in of]
            for name, opened in zip(_OPENED, np.transpose(own), strict=True):
                if opened.sum() == rows[name][of].sum():
                    rows[name][of] = opened

    def _count(
        self, place: tuple[int, int, int], of: SpreadKind, amounts: npt.NDArray[np.uint64]
    ) -> None:
        own = self._spread.setdefault((*place, int(of)), np.zeros(FILE_BUCKETS, np.int64))
        some = amounts[amounts > 0].astype(np.float64)
        buckets = np.frexp(some)[1] - 1  # unlike log2 never rounded up to the next one
        own += np.bincount(buckets, minlength=FILE_BUCKETS)[:FILE_BUCKETS]

    def _spread_rows(self) -> Rows:
        parts = [np.empty(0, SPREAD_ROW)]
        for (epoch, op, file_class, of), counts in sorted(self._spread.items()):
            buckets = np.flatnonzero(counts)
            part = np.empty(len(buckets), SPREAD_ROW)
            part["epoch"], part["op"], part["class"], part["of"] = epoch, op, file_class, of
            part["bucket"], part["count"] = buckets, counts[buckets]
            parts.append(part)
        return np.concatenate(parts)


def _groups(columns: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[np.intp]]:
    """Places that agree in all columns."""
    if not len(columns[0]):
        return []
    order = np.lexsort(columns)
    differs = [np.diff(column[order].astype(np.int64)) != 0 for column in columns]
    return np.split(order, np.flatnonzero(np.any(differs, axis=0)) + 1)


def _file_rows(keys: Rows, files: Rows) -> Rows:
    rows = np.zeros(len(keys), IO_ROW)
    rows["epoch"], rows["op"], rows["class"] = keys["epoch"], keys["op"], files["class"]
    rows["inode"], rows["device"] = keys["ino"].astype(np.int64), keys["dev"]
    rows["file_bytes"], rows["file_count"] = files["size"].astype(np.int64), 1
    above = np.where(files["parent"] == b"/", b"", files["parent"])  # a mount's root has that name
    rows["file"] = np.char.add(np.char.add(above, b"/"), files["name"])
    _take_access(rows, files["access"])
    return rows


def _take_access(rows: Rows, access: Any) -> None:
    for name in ACCESS.names or ():
        rows[name] = access[name].astype(np.int64)


WORDS = {"op": FileOp, "class": FileClass, "of": SpreadKind, **PEER_WORDS}
"""Columns that are words in the run log."""
