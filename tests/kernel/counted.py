"""What is counted of each file in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kernel.observed import ObservedKernel
from trainobs.core.abi import FileClass, FileOp
from trainobs.core.file_rows import IoRows, SpreadKind
from trainobs.probes.local_backend import LocalBackend


def observing() -> ObservedKernel:
    return ObservedKernel(kernel=LocalBackend(counts_files=True))


def watch(kernel: ObservedKernel, place: Path) -> None:
    """Call what lies in a directory data, and forget how it was made."""
    kernel.data(place)
    take(kernel)


def take(kernel: ObservedKernel, before: int | None = None) -> IoRows:
    assert kernel.kernel.files is not None
    return kernel.kernel.files.take(before)


def of_class(found: IoRows, cls: FileClass = FileClass.DATA, op: FileOp = FileOp.READ) -> Any:
    """The row of a class, of one epoch."""
    rows = found.rows
    own = rows[(rows["class"] == cls) & (rows["op"] == op) & (rows["file"] == b"")]
    assert len(own) == 1, own
    return own[0]


def of_file(found: IoRows, file: Path, op: FileOp = FileOp.READ) -> Any:
    rows = found.rows
    own = rows[(rows["inode"] == file.stat().st_ino) & (rows["op"] == op)]
    assert len(own) == 1, own
    return own[0]


def spread(found: IoRows, of: SpreadKind, cls: FileClass = FileClass.DATA) -> dict[int, int]:
    rows = found.spread
    own = rows[(rows["class"] == cls) & (rows["op"] == FileOp.READ) & (rows["of"] == of)]
    return dict(zip(own["bucket"].tolist(), own["count"].tolist(), strict=True))
