"""The run log on disk: the names that its writer and its reader share.

    RUN/
      run.json                   what is true for the whole run; written by rank 0
      rank=N/rank.json           the same for another rank
      rank=N/steps-00000.parquet one row per step
      rank=N/kernel-00000.parquet the non-zero kernel cells of the same steps
      rank=N/batches-00000.parquet the batches of loaders that became known with them
      rank=N/arrivals-00000.parquet when it came to collectives, in a job of several ranks
      rank=N/embeddings-00000.parquet lookups by step and embedding table, where there are any
      rank=N/io-00000.parquet    what was read and written of files by epoch, where that is counted
      rank=N/io_spread-00000.parquet histograms of it
      rank=N/io_cache-00000.parquet what of the data set the page cache held as epochs ended
      rank=N/io_peers-00000.parquet what was sent to and received from peers by epoch
      rank=N/latency.parquet     log2 latency histograms since the run began
      access-counts/rank=N.npz   how often each row of those tables was looked up

Files are written under a hidden name and renamed, so a name that is listed here is always whole.
`rank=N` is a Hive partition: DuckDB, pyarrow and Polars read it as a column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

SCHEMA = 1
"""Version of everything below; a reader refuses a newer one."""

RUN_FILE = "run.json"
RANK_FILE = "rank.json"
STEPS = "steps"
KERNEL = "kernel"
BATCHES = "batches"
ARRIVALS = "arrivals"
EMBEDDINGS = "embeddings"
IO = "io"
IO_SPREAD = "io_spread"
IO_CACHE = "io_cache"
IO_PEERS = "io_peers"
LATENCY = "latency"
COUNTS_DIR = "access-counts"

_RANK_DIR = re.compile(r"rank=([0-9]+)")
_PART = re.compile(r"(\w+)-([0-9]+)\.parquet")


def rank_dir(run_dir: Path, rank: int) -> Path:
    """Directory of one rank."""
    return run_dir / f"rank={rank}"


def run_file(run_dir: Path, rank: int) -> Path:
    """File of what is true for the whole run, as `rank` saw it."""
    return run_dir / RUN_FILE if rank == 0 else rank_dir(run_dir, rank) / RANK_FILE


def counts_file(run_dir: Path, rank: int) -> Path:
    """File of the access counts of one rank."""
    return run_dir / COUNTS_DIR / f"rank={rank}.npz"


def part_file(run_dir: Path, rank: int, table: str, number: int) -> Path:
    """File of part `number` of a table (`STEPS`, `KERNEL`, ...); parts are in step order."""
    return rank_dir(run_dir, rank) / f"{table}-{number:05d}.parquet"


def part_number(file: Path) -> int:
    """Which part of its table a file is: the `number` of `part_file`."""
    return int(file.stem.rpartition("-")[2])


def latency_file(run_dir: Path, rank: int) -> Path:
    """The file of the `LATENCY` table, which has no parts."""
    return rank_dir(run_dir, rank) / f"{LATENCY}.parquet"


def files_of(run_dir: Path, rank: int, tables: Iterable[str]) -> dict[str, list[Path]]:
    """Table -> its files: parts from the first to the last there is, in step order; or the one.

    Of parts that are missing in between the last is in the list, so that its reader notices.
    """
    names = [path.name for path in rank_dir(run_dir, rank).iterdir()]
    numbers: dict[str, set[int]] = {table: set() for table in tables}
    for match in filter(None, map(_PART.fullmatch, names)):
        if match[1] in numbers:
            numbers[match[1]].add(int(match[2]))
    found = {
        table: [
            part_file(run_dir, rank, table, number)
            for number in sorted(own | {number - 1 for number in own if number})
        ]
        for table, own in numbers.items()
    }
    latency = latency_file(run_dir, rank)
    return found | ({LATENCY: [latency]} if latency.name in names else {})


def ranks(run_dir: Path) -> list[int]:
    """Ranks that have a directory, ascending."""
    found = (_RANK_DIR.fullmatch(path.name) for path in run_dir.iterdir() if path.is_dir())
    return sorted(int(match[1]) for match in found if match)
