"""Put the pieces of a bundle together, where they were carried to; needs Python alone.

    python gpu-bundle/join.py

Writes `joined/site` (packages) and `joined/trainobs` (this repository's files) beside the pieces.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import sys
import tarfile
from pathlib import Path


class Joined(io.RawIOBase):
    """The pieces, read one behind the other."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = iter(paths)
        self._file: io.BufferedReader | None = None

    def readable(self) -> bool:
        """It is for reading."""
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        """Some of what comes next; 0 at the end."""
        while True:
            if self._file is None:
                path = next(self._paths, None)
                if path is None:
                    return 0
                self._file = path.open("rb")
            if count := self._file.readinto(buffer):
                return count
            self._file.close()
            self._file = None


def faults(folder: Path, pieces: dict[str, str]) -> list[str]:
    """Pieces that are missing or damaged."""
    found = []
    for name, digest in pieces.items():
        path = folder / name
        if not path.exists():
            found.append(f"{name} is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            found.append(f"{name} is damaged")
    return found


def join(folder: Path) -> int:
    """Check and unpack what is in a folder: the exit status."""
    manifest = json.loads((folder / "manifest.json").read_text())
    if wrong := faults(folder, manifest["pieces"]):
        print(f"cannot join the bundle\n  found: {', '.join(wrong)}\n  do:    carry them again")
        return 1
    into, ended = folder / "joined", folder / "joined" / "manifest.json"
    if not (ended.exists() and json.loads(ended.read_text()) == manifest):
        joined = Joined([folder / name for name in manifest["pieces"]])
        parts = io.BufferedReader(joined)  # type: ignore[type-var]
        with lzma.open(parts) as packed, tarfile.open(None, "r|", packed) as tar:
            tar.extractall(into, filter="data")
        ended.write_text(json.dumps(manifest))
    print(f"joined: cd {into}/trainobs && PYTHONPATH={into}/site:src python -m benchmarks.gpu")
    return 0


if __name__ == "__main__":
    sys.exit(join(Path(__file__).resolve().parent))
