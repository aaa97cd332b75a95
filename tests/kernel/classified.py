"""Files of one size, and the class under which they are counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.kernel.observed import ObservedKernel
from trainobs.core.abi import FileClass, Op, Phase

SIZE = 5003


def new(path: Path) -> Path:
    """A file of `SIZE` bytes, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(SIZE))
    return path


def class_of(observed: ObservedKernel, path: Path) -> FileClass:
    """Class under which the bytes of a file are counted when this process reads it."""
    return class_while(observed, path.read_bytes)


def class_while(
    observed: ObservedKernel, work: Callable[[], object], phase: Phase | None = None
) -> FileClass:
    """Class under which the `SIZE` bytes are counted that `work` reads, and no other."""
    got = observed.during(work, phase)
    (found,) = (cls for cls in FileClass if got.bytes(Op.READ, cls) == SIZE)
    return found
