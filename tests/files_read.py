"""Made-up tables of files and peers in a run log."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainobs.core.abi import FileClass, FileOp
from trainobs.core.file_rows import CACHE_ROW, IO_ROW, NOTHING, SPREAD_ROW, IoRows, SpreadKind
from trainobs.core.peer_rows import PEER_ROW
from trainobs.runlog.io import IoSink

DATA = int(FileClass.DATA)
READ = int(FileOp.READ)
COUNTS = {
    "count": 100,
    "bytes": 1_000_000,
    "first_count": 10,
    "consecutive_count": 40,
    "forward_count": 30,
    "backward_count": 15,
    "aligned_count": 50,
    "open_count": 10,
    "unique_least": 400_000,
    "unique_most": 500_000,
}


def peer_rows(*values: tuple) -> np.ndarray:
    """Rows of `PEER_ROW` of the first epoch: phase, role, peer, own port, port, and the counts."""
    return np.array([(0, *value) for value in values], PEER_ROW)


def with_files(
    run: Path,
    name: bytes = b"data/a.bin",
    peers: np.ndarray = NOTHING.peers,
    rank: int = 0,
    **more: int,
) -> Path:
    rows = np.zeros(2, IO_ROW)
    rows["op"], rows["class"], rows["inode"] = READ, DATA, -1
    rows["file"][1], rows["file_bytes"][1] = name, 600_000
    for field, value in {**COUNTS, **more}.items():
        rows[field] = value
    spread = np.array(
        [
            (0, READ, DATA, SpreadKind.CALL_BYTES, 12, 60),
            (0, READ, DATA, SpreadKind.CALL_BYTES, 20, 40),
        ],
        SPREAD_ROW,
    )
    cache = np.array([(0, 5, 4, True, 2, 1000, 250, 0)], CACHE_ROW)
    sink = IoSink(run, rank, lambda is_last: IoRows(rows, spread, cache, peers))
    sink.end({})
    return run
