"""What the kernel side counted of each file and peer, taken out epoch by epoch.

By `bpf/files.bpf.h` and `bpf/peers.bpf.h`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from trainobs.core.abi import FILE, FILE_KEY, PEER, PEER_KEY, TOTAL, TOTAL_KEY
from trainobs.core.file_rows import NOTHING, IoRows, IoRowsBuilder
from trainobs.core.peer_rows import peer_rows
from trainobs.probes.map_entries import Rows, entries, remove

ENTRIES = {
    **{"totals": 4096, "files": 65_536, "chunks": 131_072, "streams": 16_384},
    **{"peers": 8192, "unlisted_peers": 4096},
}
"""Map -> how many entries it has room for, where files are counted.

Files that were read, and those that were written, in epochs that were not taken out yet; chunks of
256 KiB of files that were not read from their beginning on without a gap; open files; peers by
phase and role, and the others by these. They take memory as they fill, 20, 15 and 1 MB at most, but
for the open files, which have their 2 MB."""

CHUNK_KEY = np.dtype([("file", FILE_KEY), ("number", "<u8")])
CHUNK = np.dtype([("touched", "<u8"), ("full", "<u8")])


class FileCounts:
    """The maps of files of one session, which has its set of programs alone.

    Args:
        maps: name -> descriptor, of `ENTRIES`.
        unknown: "sent" or "received", where what goes to or comes from peers is not counted.
    """

    def __init__(self, maps: Mapping[str, int], unknown: Collection[str] = ()) -> None:
        self._maps: Mapping[str, int] | None = maps
        self._unknown = unknown
        self._left = NOTHING
        self._lock = threading.Lock()

    def take(self, before: int | None = None) -> IoRows:
        """What was counted in the epochs before one, or in all: it is told once.

        What is counted in those epochs meanwhile may be lost: ask when they are surely over.

        Raises:
            OSError: the kernel does not tell.
        """
        with self._lock:
            left, self._left = self._left, NOTHING
            return IoRows.join([left, self._read(before)])

    def close(self) -> None:
        """Read what is left; the maps may go then. May be called twice."""
        with self._lock:
            try:
                self._left = IoRows.join([self._left, self._read(None)])
            finally:
                self._maps = None

    def _read(self, before: int | None) -> IoRows:
        if self._maps is None:
            return NOTHING
        builder = IoRowsBuilder()
        for keys, files in self._removed("files", FILE_KEY, FILE, before):
            builder.add(keys, files)
        for _ in self._removed("chunks", CHUNK_KEY, CHUNK, before):
            pass
        keys, totals = self._all_removed(["totals"], TOTAL_KEY, TOTAL, before)
        who, peers = self._all_removed(["peers", "unlisted_peers"], PEER_KEY, PEER, before)
        counted = builder.counted(keys, totals)
        return counted._replace(peers=peer_rows(who, peers, self._unknown))

    def _all_removed(
        self,
        names: Collection[str],
        key: np.dtype[np.void],
        value: np.dtype[np.void],
        before: int | None,
    ) -> tuple[Rows, Rows]:
        """Entries of some maps, taken out."""
        parts = [(np.empty(0, key), np.empty(0, value))]
        for name in names:
            parts += self._removed(name, key, value, before)
        keys, values = (np.concatenate(part) for part in zip(*parts, strict=True))
        return keys, values

    def _removed(
        self, name: str, key: np.dtype[np.void], value: np.dtype[np.void], before: int | None
    ) -> Iterator[tuple[Rows, Rows]]:
        """Entries of a map, taken out."""
        assert self._maps is not None
        for keys, values in entries(self._maps[name], key, value):
            epoch = keys["file"]["epoch"] if name == "chunks" else keys["epoch"]
            is_over = np.ones(len(keys), bool) if before is None else epoch < before
            if is_over.any():
                yield keys[is_over], values[is_over]
                remove(self._maps[name], np.ascontiguousarray(keys[is_over]))
