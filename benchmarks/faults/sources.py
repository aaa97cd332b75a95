"""Where items come from: nothing, files, places in one large file, a mapped file, a server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import numpy.typing as npt

from faults.machine import URL
from faults.training import Training

Source = Callable[[int], None]
"""Reads what an item is made from, given its number."""

_PIECE = 1 << 20


def source_of(training: Training, folder: Path, count: int) -> Source | None:
    """Lay out what so many items are read from; None: they come from memory."""
    if training.source == "files":
        return Files(folder, count, training.read_kb << 10, training.cold)
    if training.source in ("random", "mapped"):
        path = folder / "large.bin"
        _write([path], training.file_mb << 20, training.cold)
        kind = Random if training.source == "random" else Mapped
        return kind(path, training.read_kb << 10, training.reads)
    return {"memory": None, "http": _fetch}[training.source]


class Files:
    """A file for each item, read whole."""

    def __init__(self, folder: Path, count: int, size: int, cold: bool) -> None:
        self._folder = folder
        self._cold = cold
        _write([folder / f"{index}.bin" for index in range(count)], size, cold)

    def __call__(self, index: int) -> None:
        path = self._folder / f"{index}.bin"
        path.read_bytes()
        if self._cold:
            _forget(path)


class Random:
    """Places in one large file, chosen at random."""

    def __init__(self, path: Path, size: int, reads: int) -> None:
        self._path = path
        self._size = size
        self._reads = reads
        self._places = path.stat().st_size // size

    def __call__(self, index: int) -> None:
        places = np.random.default_rng(index).integers(0, self._places, self._reads)
        with open(self._path, "rb", buffering=0) as file:
            for place in places:
                os.pread(file.fileno(), self._size, int(place) * self._size)


class Mapped(Random):
    """The same of a file that is mapped by whoever reads it first."""

    _table: npt.NDArray[np.uint8] | None = None

    def __call__(self, index: int) -> None:
        if self._table is None:
            self._table = np.memmap(self._path, np.uint8, "r", shape=(self._places, self._size))
        self._table[np.random.default_rng(index).integers(0, self._places, self._reads)].sum()


def _fetch(index: int) -> None:
    with urlopen(f"{os.environ[URL]}{index}") as answer:
        answer.read()


def _write(paths: list[Path], size: int, cold: bool) -> None:
    for path in paths:
        with open(path, "wb") as file:
            for begin in range(0, size, _PIECE):
                file.write(os.urandom(min(_PIECE, size - begin)))
    if cold:
        for path in paths:
            _forget(path)


def _forget(path: Path) -> None:
    """Take a file out of the page cache; what is not on the disk yet would stay."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
