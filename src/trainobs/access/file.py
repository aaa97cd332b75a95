"""Access counts in a file: an npz without pickle, each array of which has a checksum.

meta.npy             JSON: schema, budget, and for each table its name, rows, total, ...
rows-N.npy           of table N: ids that were looked up; missing if `counts-N` has every row
counts-N.npy         of table N: their counts
inputs-N-WHAT.npy    of the Nth epoch: what `InputSample` holds; columns of steps where it has any
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainobs.access.input_sample import InputSample
from trainobs.access.input_steps import CountedSteps, InputSteps
from trainobs.access.sketch import BLOCK_ROWS, Blocks, Counts, Ids, blocks_of
from trainobs.core.errors import AccessCountsError, shown
from trainobs.core.files import npz_members, replacing

SCHEMA = 1
FOLDER = "access-counts"
RANK_FILE = re.compile(r"rank=\d+\.npz")
SAMPLE_COLUMNS = {"draws": "<f8", "sizes": "<i8", "tables": "<i4", "ids": "<i8"}
STEP_COLUMNS = {"steps": "<i8", "own": "<u4", "near": "<f4"}


@dataclass(frozen=True)
class TableRecord:
    """Counts of one table.

    Attributes:
        blocks: gives rows and counts, ascending.
        row_count: rows of the table.
        total: lookups of rows of the table.
        outside: lookups of other ids.
        error: by how much a count can be too low.
    """

    blocks: Callable[[], Blocks]
    row_count: int
    total: int
    outside: int
    error: int


@dataclass(frozen=True)
class CountsRecord:
    """Access counts to be written, merged, or as a file has them.

    Attributes:
        budget_bytes: memory that they were allowed.
        tables: by name.
        samples: epoch -> sampled inputs, and the draw below which all of them are.
        steps: how many looked rows up, and how many were counted; None: not known.
    """

    budget_bytes: int
    tables: Mapping[str, TableRecord]
    samples: Mapping[int, tuple[InputSample, float]]
    steps: CountedSteps | None = None

    @property
    def row_counts(self) -> dict[str, int]:
        """Table -> its rows."""
        return {name: table.row_count for name, table in self.tables.items()}


def write(record: CountsRecord, path: Path) -> None:
    """Write a file that a reader finds whole.

    Raises:
        OSError: as `open`; what was at `path` is as before.
    """
    with (
        replacing(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        _write_meta(archive, record)
        for at, table in enumerate(record.tables.values()):
            _write_counts(archive, at, table.row_count, table.blocks)
        for at, (sample, _) in enumerate(record.samples.values()):
            columns: list[tuple[Any, dict[str, str]]] = [(sample, SAMPLE_COLUMNS)]
            columns += [] if sample.of_steps is None else [(sample.of_steps, STEP_COLUMNS)]
            for column, kind, array in (
                (column, kind, getattr(of, column))
                for of, kinds in columns
                for column, kind in kinds.items()
            ):
                pieces = np.array_split(array, len(array) // BLOCK_ROWS + 1)
                _write_array(archive, f"inputs-{at}-{column}", kind, len(array), pieces)


def _write_meta(archive: zipfile.ZipFile, record: CountsRecord) -> None:
    tables = [
        {
            "name": name,
            "rows": table.row_count,
            "total": table.total,
            "outside": table.outside,
            "error": table.error,
        }
        for name, table in record.tables.items()
    ]
    epochs = [
        {"epoch": epoch, "seen": sample.seen, "threshold": threshold}
        for epoch, (sample, threshold) in record.samples.items()
    ]
    meta = {
        "schema": SCHEMA,
        "budget_bytes": record.budget_bytes,
        "tables": tables,
        "epochs": epochs,
        "steps": record.steps,
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


def read(path: Path) -> CountsRecord:
    """What a file holds, all of it checked and in memory.

    Raises:
        AccessCountsError: it cannot be read, is damaged, or is newer than this.
    """
    failed = f"cannot read access counts from {path}"
    try:
        with npz_members(path) as archive:
            meta = json.loads(archive["meta"].tobytes())
            if meta["schema"] > SCHEMA:
                newer = f"schema {meta['schema']}, written by a newer trainobs"
                found = f"{newer}; this one reads up to {SCHEMA}"
                raise AccessCountsError(failed, found, "upgrade trainobs")
            return _record(meta, archive)
    except OSError as error:
        raise AccessCountsError(failed, str(error), "check the path") from error
    except ValueError as error:
        found = f"the file is damaged, or of another kind ({error})"
        raise AccessCountsError(failed, found, "take another copy, or count again") from error


def _record(meta: dict[str, Any], archive: Mapping[str, NDArray[Any]]) -> CountsRecord:
    tables = {}
    for at, about in enumerate(meta["tables"]):
        counts, ids = archive[f"counts-{at}"], archive.get(f"rows-{at}")
        numbers = (_whole(about[key]) for key in ("rows", "total", "outside", "error"))
        table = TableRecord(partial(blocks_of, counts, ids), *numbers)
        _check_table(about["name"], table, ids, counts)
        tables[about["name"]] = table
    samples = {}
    for at, about in enumerate(meta["epochs"]):
        columns = {column: archive[f"inputs-{at}-{column}"] for column in SAMPLE_COLUMNS}
        sample = InputSample(
            **columns, seen=_whole(about["seen"]), of_steps=_of_steps(archive, at, columns)
        )
        threshold = float(about["threshold"])
        _check_sample(sample, threshold, len(tables))
        samples[_whole(about["epoch"])] = (sample, threshold)
    steps = meta.get("steps")  # an older trainobs did not say
    counted = None if steps is None else CountedSteps(*map(_whole, steps))
    return CountsRecord(_whole(meta["budget_bytes"]), tables, samples, counted)


def _of_steps(
    archive: Mapping[str, NDArray[Any]], at: int, columns: Mapping[str, NDArray[Any]]
) -> InputSteps | None:
    """Which steps the Nth epoch's inputs are of; None where the file does not say."""
    if f"inputs-{at}-steps" not in archive:
        return None
    found = InputSteps(*(archive[f"inputs-{at}-{column}"] for column in STEP_COLUMNS))
    kinds = [found.steps.dtype.str, found.own.dtype.str, found.near.dtype.str]
    sound = kinds == list(STEP_COLUMNS.values())
    sound &= len(found.steps) == len(columns["draws"])
    sound &= len(found.own) == len(found.near) == len(columns["ids"])
    if not sound:
        raise ValueError("the steps of sampled inputs contradict themselves")
    return found


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{shown(value)} is no count")
    return value


def _check_table(
    name: str, table: TableRecord, ids: Ids | None, counts: NDArray[np.unsignedinteger[Any]]
) -> None:
    """Refuse what no `save` has written: a checksum covers the bytes, not the sense."""
    sound = type(name) is str and counts.ndim == 1 and counts.dtype.kind == "u"
    if ids is None:
        sound &= len(counts) == table.row_count
    else:
        sound &= ids.shape == counts.shape and ids.dtype.kind == "i"
        sound &= bool((np.diff(ids) > 0).all())
        sound &= not len(ids) or bool(ids[0] >= 0 and ids[-1] < table.row_count)
    counted = int(counts.sum(dtype=np.uint64))
    if not sound or counted > table.total or (counted < table.total and not table.error):
        raise ValueError(f"the counts of table {name!r} contradict each other")


def _check_sample(sample: InputSample, threshold: float, table_count: int) -> None:
    kinds = ((getattr(sample, name).dtype.str, kind) for name, kind in SAMPLE_COLUMNS.items())
    sound = all(found == kind for found, kind in kinds) and threshold >= 0
    sound &= bool(((sample.draws >= 0) & (sample.draws < threshold)).all())
    sound &= len(sample.draws) == len(sample.sizes) and bool((sample.sizes >= 0).all())
    sound &= int(sample.sizes.sum()) == len(sample.ids) == len(sample.tables)
    sound &= bool(((sample.tables >= 0) & (sample.tables < table_count)).all())
    if not sound or sample.seen < len(sample):
        raise ValueError("the sample of inputs contradicts itself")
