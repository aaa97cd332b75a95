"""Criteo's click logs as batches: streamed, and shared among loader workers and ranks by bytes.

A plain file is cut into as many ranges of bytes as there are workers in all; a line belongs to
the range in which it begins, so each is read once, whatever the number of workers. A ``.gz`` file
has no ranges: one worker reads it whole.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from columns import Inputs, make_batch, mix
from criteo_text import MISSING, Malformed, Rows, parse
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info
from torchrec.datasets.utils import Batch

BLOCK_BYTES = 4 << 20  # 17,000 lines
TOLD_LINES = 5  # malformed lines that a worker names in each pass; the others it counts
MOST_WORKERS = 1024
SURELY_SOME = 100  # lines of which one would be good, if the file were Criteo's


@dataclass(frozen=True)
class Part:
    """The lines of a file that begin in a range of bytes; ``stop`` None is the end."""

    path: Path
    start: int = 0
    stop: int | None = None

    @property
    def packed(self) -> bool:
        """Whether it can only be read from the beginning."""
        return self.path.suffix == ".gz"


class MalformedLineError(ValueError):
    """A line that is none of Criteo's, under ``strict``, or a file without any that is."""


class CriteoBatches(IterableDataset[Batch]):
    """Batches of the lines of some files, made in the loader workers (``batch_size=None`` there).

    A worker fills its batches from its own lines, so the last one of each may be smaller.

    Args:
        parts: what to read, in this order.
        rows: rows of each of the 26 tables; categories are hashed to them.
        batch_size: inputs in a batch.
        strict: stop at a malformed line; without it, such lines are skipped and counted.
        rank: which share of the lines to read, of ``world_size`` shares.
        world_size: number of ranks.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        rows: Sequence[int],
        batch_size: int,
        *,
        strict: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.parts, self.rows, self.batch_size = parts, rows, batch_size
        self.strict, self.rank, self.world_size = strict, rank, world_size
        # A cell for each worker, in memory that they share with the training process.
        self._malformed = torch.zeros(MOST_WORKERS, dtype=torch.int64).share_memory_()

    @property
    def malformed_count(self) -> int:
        """Lines skipped so far, by all workers of this rank and in all passes."""
        return int(self._malformed.sum())

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of this worker."""
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        shares = self.world_size * workers
        self._told = 0
        left: list[Inputs] = []
        size = self.batch_size
        for part in share(self.parts, self.rank * workers + worker, shares):
            for rows in _naming(part, self._read(part, worker)):
                left.append((rows.labels, rows.dense, hash_rows(rows.categories, self.rows)))
                if sum(len(labels) for labels, _, _ in left) < size:
                    continue
                labels, dense, ids = _join(left)
                whole = len(labels) // size * size
                for at in range(0, whole, size):
                    end = at + size
                    yield make_batch(labels[at:end], dense[at:end], ids[:, at:end])
                left = [(labels[whole:], dense[whole:], ids[:, whole:])]
        labels, dense, ids = _join(left) if left else ((), (), ())
        if len(labels):
            yield make_batch(labels, dense, ids)

    def _read(self, part: Part, worker: int) -> Iterator[Rows]:
        """Yield the good lines of a part, block by block."""
        with gzip.open(part.path) if part.packed else part.path.open("rb") as file:
            start, before, fresh = skip_to_line(file, part.start), 0, True
            for lines in read_blocks(file, start, part.stop):
                rows, malformed = parse(lines)
                for line in malformed:
                    self._tell(part, start, before, line)
                if fresh and len(malformed) == len(lines) >= SURELY_SOME:
                    raise MalformedLineError(_no_criteo(part.path, malformed[0]))
                self._malformed[worker % MOST_WORKERS] += len(malformed)
                yield rows
                before, fresh = before + len(lines), False

    def _tell(self, part: Part, start: int, before: int, line: Malformed) -> None:
        """Say which line is malformed, the first few times; under ``strict`` raise."""
        if self._told >= TOLD_LINES and not self.strict:
            return
        self._told += 1
        number = 1 + count_lines(part, start) + before + line.index
        found = f"  found: {part.path}, line {number}: {line.reason}"
        if self.strict:
            do = "  do:    repair the line, or leave --strict out to skip such lines"
            raise MalformedLineError(f"A line of the data is malformed.\n{found}\n{do}")
        more = "; further ones are only counted" if self._told == TOLD_LINES else ""
        do = f"  do:    nothing: it is skipped and counted{more}; --strict would stop here"
        print(f"A line of the data is malformed.\n{found}\n{do}", file=sys.stderr)


def _naming(part: Part, blocks: Iterator[Rows]) -> Iterator[Rows]:
    """Yield blocks; say which file it is that cannot be unpacked."""
    try:
        yield from blocks
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise MalformedLineError(
            "The data cannot be unpacked.\n"
            f"  found: {part.path}: {error}\n"
            "  do:    fetch the file again, or leave it out"
        ) from error


def _join(pieces: list[Inputs]) -> Inputs:
    if len(pieces) == 1:
        return pieces[0]
    labels, dense, ids = zip(*pieces, strict=True)
    return np.concatenate(labels), np.concatenate(dense), np.concatenate(ids, axis=1)


def share(parts: Sequence[Part], index: int, count: int) -> Iterator[Part]:
    """Yield what share number ``index`` of ``count`` is to read: each line is in one share."""
    packed = 0
    for part in parts:
        if part.packed:
            if packed % count == index:
                yield part
            packed += 1
            continue
        stop = part.path.stat().st_size if part.stop is None else part.stop
        length = stop - part.start
        first, last = (part.start + length * cut // count for cut in (index, index + 1))
        if first < last:
            yield Part(part.path, first, last)


def skip_to_line(file: BinaryIO, start: int) -> int:
    """Go to the first line that begins at ``start`` or behind it; return where it begins."""
    if start:
        file.seek(start - 1)
        file.readline()
    return file.tell()


def read_blocks(file: BinaryIO, start: int, stop: int | None) -> Iterator[list[bytes]]:
    """Yield blocks of the lines that begin between ``start``, where the file is, and ``stop``."""
    position = start
    while stop is None or position < stop:
        room = BLOCK_BYTES if stop is None else min(BLOCK_BYTES, stop - position)
        # A hint of n bytes ends behind the line that goes beyond n, and 0 would be no limit.
        lines = file.readlines(room - 1) if room > 1 else [file.readline()]
        if not lines or not lines[0]:
            return
        position += sum(map(len, lines))
        yield lines


def count_lines(part: Part, start: int) -> int:
    """Count the lines of a plain file that begin before ``start``: only done for a message."""
    count = 0
    with part.path.open("rb") as file:
        while start > 0 and (block := file.read(min(BLOCK_BYTES, start))):
            count += block.count(b"\n")
            start -= len(block)
    return count


def hash_rows(categories: NDArray[np.int64], rows: Sequence[int]) -> NDArray[np.int64]:
    """Return the row of each category in its table ``(26, N)``; 0 is for missing ones."""
    ids = np.empty_like(categories)
    for column, (values, count) in enumerate(zip(categories, rows, strict=True)):
        hashed = mix(values.astype(np.uint64), column) % np.uint64(count - 1)
        ids[column] = np.where(values == MISSING, 0, hashed.astype(np.int64) + 1)
    return ids


def _no_criteo(path: Path, first: Malformed) -> str:
    return (
        "The data is not in Criteo's format.\n"
        f"  found: {path}: none of its first lines is; the first has {first.reason}\n"
        "  do:    give a file with 40 columns between tabs: label, 13 integers, 26 categories"
    )


def split(paths: Sequence[Path]) -> tuple[list[Part], list[Part]]:
    """Return what to train on and what to validate on: the last seventh of the time.

    Of several files, such as the days of the Terabyte set, the last is for validation; of one, its
    last seventh, which in the Kaggle set is its last day.
    """
    if len(paths) > 1:
        return [Part(path) for path in paths[:-1]], [Part(paths[-1])]
    (path,) = paths
    if path.suffix == ".gz":
        raise ValueError("one .gz file cannot be split")
    cut = path.stat().st_size * 6 // 7
    return [Part(path, 0, cut)], [Part(path, cut)]
