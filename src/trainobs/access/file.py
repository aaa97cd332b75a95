"""Access counts in a file: an npz without pickle, each array of which has a checksum.

meta.npy             JSON: schema, budget, and for each table its name, rows, total, ...
rows-N.npy           of table N: ids that were looked up; missing if `counts-N` has every row
counts-N.npy         of table N: their counts
inputs-N-WHAT.npy    of the Nth epoch: what `InputSample` holds
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainobs.access.input_sample import InputSample
from trainobs.access.sketch import BLOCK_ROWS, Blocks, Counts, Ids, blocks_of
from trainobs.core.errors import AccessCountsError
from trainobs.core.files import npz_members, replacing

SCHEMA = 1
FOLDER = "access-counts"
RANK_FILE = re.compile(r"rank=\d+\.npz")
SAMPLE_COLUMNS = {"draws": "<f8", "sizes": "<i8", "tables": "<i4", "ids": "<i8"}


class CountsToWrite(Protocol):
    """What can be written, and what a file is read as."""

    budget_bytes: int

    @property
    def tables(self) -> Mapping[str, int]:
        """Name -> number of rows."""

    def total(self, table: str) -> int:
        """Lookups of rows of the table."""

    def outside(self, table: str) -> int:
        """Lookups of other ids."""

    def error(self, table: str) -> int:
        """By how much a count can be too low."""

    def blocks(self, table: str) -> Blocks:
        """Rows and counts, ascending."""

    def samples(self) -> dict[int, tuple[InputSample, float]]:
        """Epoch -> sampled inputs, and the draw below which all of them are."""


def write(source: CountsToWrite, path: Path) -> None:
    """Write a file that a reader finds whole.

    Raises:
        OSError: as `open`; what was at `path` is as before.
    """
    with (
        replacing(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive,
    ):
        _write_meta(archive, source)
        for at, (table, rows) in enumerate(source.tables.items()):
            _write_counts(archive, at, rows, partial(source.blocks, table))
        for at, (sample, _) in enumerate(source.samples().values()):
            for column, kind in SAMPLE_COLUMNS.items():
                array = getattr(sample, column)
                pieces = np.array_split(array, len(array) // BLOCK_ROWS + 1)
                _write_array(archive, f"inputs-{at}-{column}", kind, len(array), pieces)


def _write_meta(archive: zipfile.ZipFile, source: CountsToWrite) -> None:
    tables = [
        {
            "name": name,
            "rows": rows,
            "total": source.total(name),
            "outside": source.outside(name),
            "error": source.error(name),
        }
        for name, rows in source.tables.items()
    ]
    epochs = [
        {"epoch": epoch, "seen": sample.seen, "threshold": threshold}
        for epoch, (sample, threshold) in source.samples().items()
    ]
    meta = {
        "schema": SCHEMA,
        "budget_bytes": source.budget_bytes,
        "tables": tables,
        "epochs": epochs,
    }
    text = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    _write_array(archive, "meta", "|u1", len(text), [text])


def _write_counts(
    archive: zipfile.ZipFile, at: int, rows: int, blocks: Callable[[], Blocks]
) -> None:
    """Write the counts of one table, in the smaller of the two forms; never all in memory."""
    used, highest = 0, 0
    for ids, counts in blocks():
        used += len(ids)
        highest = max(highest, int(counts.max(initial=0)))
    kind = "<u4" if highest < 1 << 32 else "<u8"
    width = np.dtype(kind).itemsize
    if used * (8 + width) < rows * width:
        _write_array(archive, f"rows-{at}", "<i8", used, (ids for ids, _ in blocks()))
        _write_array(archive, f"counts-{at}", kind, used, (counts for _, counts in blocks()))
    else:
        _write_array(archive, f"counts-{at}", kind, rows, _every_row(blocks(), rows))


def _every_row(blocks: Blocks, rows: int) -> Iterator[Counts]:
    """Counts of all rows, with zeros for those that are in no block."""
    done = 0
    for ids, counts in blocks:
        if len(ids):
            every = np.zeros(int(ids[-1]) + 1 - done, np.uint64)
            every[ids - done] = counts
            done += len(every)
            yield every
    while done < rows:
        size = min(BLOCK_ROWS, rows - done)
        done += size
        yield np.zeros(size, np.uint64)


def _write_array(
    archive: zipfile.ZipFile,
    name: str,
    kind: str,
    length: int,
    pieces: Iterable[NDArray[Any]],
) -> None:
    header = {"descr": kind, "fortran_order": False, "shape": (length,)}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for piece in pieces:
            file.write(piece.astype(kind, copy=False).tobytes())


def files_in(path: Path) -> list[Path]:
    """A file, or those of all ranks in a directory.

    Raises:
        AccessCountsError: it is a directory without any.
    """
    if not path.is_dir():
        return [path]
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    files = sorted(file for file in folder.iterdir() if RANK_FILE.fullmatch(file.name))
    if not files:
        raise AccessCountsError(
            f"cannot read access counts from {path}",
            "no file rank=N.npz in it",
            f"give a run directory, its {FOLDER}, or a file",
        )
    return files


class Stored:
    """A file of access counts, all of it checked and in memory.

    Raises:
        AccessCountsError: it cannot be read, is damaged, or is newer than this.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with npz_members(path) as archive:
                meta = json.loads(archive["meta"].tobytes())
                self._check_schema(meta["schema"])
                self._read(meta, archive)
        except OSError as error:
            raise AccessCountsError(
                f"cannot read access counts from {path}", str(error), "check the path"
            ) from error
        except ValueError as error:
            raise AccessCountsError(
                f"cannot read access counts from {path}",
                f"the file is damaged, or of another kind ({error})",
                "take another copy, or count again",
            ) from error

    def _check_schema(self, schema: int) -> None:
        if schema > SCHEMA:
            raise AccessCountsError(
                f"cannot read access counts from {self._path}",
                f"schema {schema}, written by a newer trainobs; this one reads up to {SCHEMA}",
                "upgrade trainobs",
            )

    def _read(self, meta: dict[str, Any], archive: Mapping[str, NDArray[Any]]) -> None:
        self.budget_bytes = int(meta["budget_bytes"])
        self._about = {table["name"]: table for table in meta["tables"]}
        self.tables = {name: int(about["rows"]) for name, about in self._about.items()}
        self._counts = {}
        for at, (name, about) in enumerate(self._about.items()):
            counts = archive[f"counts-{at}"]
            ids = archive.get(f"rows-{at}")
            _check_table(about, ids, counts)
            self._counts[name] = (ids, counts)
        self._samples = {}
        for at, about in enumerate(meta["epochs"]):
            columns = {column: archive[f"inputs-{at}-{column}"] for column in SAMPLE_COLUMNS}
            sample = InputSample(**columns, seen=int(about["seen"]))
            threshold = float(about["threshold"])
            _check_sample(sample, threshold, len(self.tables))
            self._samples[int(about["epoch"])] = (sample, threshold)

    def total(self, table: str) -> int:
        """Lookups of rows of the table."""
        return int(self._about[table]["total"])

    def outside(self, table: str) -> int:
        """Lookups of other ids."""
        return int(self._about[table]["outside"])

    def error(self, table: str) -> int:
        """By how much a count can be too low."""
        return int(self._about[table]["error"])

    def blocks(self, table: str) -> Blocks:
        """Rows and counts, ascending."""
        ids, counts = self._counts[table]
        return blocks_of(counts, ids)

    def samples(self) -> dict[int, tuple[InputSample, float]]:
        """Epoch -> sampled inputs, and the draw below which all of them are."""
        return self._samples


def _check_table(about: dict[str, Any], ids: Ids | None, counts: NDArray[Any]) -> None:
    """Refuse what no `save` has written: a checksum covers the bytes, not the sense."""
    rows = int(about["rows"])
    sound = counts.ndim == 1 and counts.dtype.kind == "u"
    sound &= int(about["outside"]) >= 0 <= int(about["error"])
    if ids is None:
        sound &= len(counts) == rows
    else:
        sound &= ids.shape == counts.shape and bool((np.diff(ids) > 0).all())
        sound &= not len(ids) or bool(ids[0] >= 0 and ids[-1] < rows)
    counted, total = int(counts.sum(dtype=np.uint64)), int(about["total"])
    if not sound or counted > total or (counted < total and not about["error"]):
        raise ValueError(f"the counts of table {about['name']!r} contradict each other")


def _check_sample(sample: InputSample, threshold: float, table_count: int) -> None:
    sound = bool(((sample.draws >= 0) & (sample.draws < threshold)).all())
    sound &= len(sample.draws) == len(sample.sizes) and bool((sample.sizes >= 0).all())
    sound &= int(sample.sizes.sum()) == len(sample.ids) == len(sample.tables)
    sound &= bool(((sample.tables >= 0) & (sample.tables < table_count)).all())
    if not sound or sample.seen < len(sample):
        raise ValueError("the sample of inputs contradicts itself")
