"""Control groups with a limit of memory, of version 1 or 2."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def limited(limit: int) -> Iterator[Path]:
    """An empty one, in which so many bytes may be used; whoever is in it at the end has to end."""
    root, name = _root()
    made = root / f"trainobs-test-{os.getpid()}"
    made.mkdir()
    try:
        (made / name).write_text(str(limit))
        yield made
    finally:
        _remove(made)


def _root() -> tuple[Path, str]:
    """Where they can be made, and the file that holds the limit."""
    for root, name in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        control = root / ("cgroup.subtree_control" if name == "memory.max" else "cgroup.procs")
        if not control.exists() or not os.access(root, os.W_OK):
            continue
        if name != "memory.max" or "memory" in control.read_text():
            return root, name
    pytest.skip("no cgroup with a memory controller can be made here")


def _remove(made: Path) -> None:
    for _ in range(500):  # who was killed is in it for a moment
        with suppress(OSError):
            return made.rmdir()
        time.sleep(0.01)
    made.rmdir()


def without_swap(group: Path) -> None:
    """Have those in it killed at the limit, and not swapped out."""
    for name in ("memory.swap.max", "memory.swappiness"):
        if (group / name).exists():
            (group / name).write_text("0")


def kills(group: Path) -> int:
    """How many processes of it the OOM killer has killed."""
    for name in ("memory.events", "memory.oom_control"):
        if (group / name).exists():
            return int(dict(map(str.split, (group / name).read_text().splitlines()))["oom_kill"])
    raise AssertionError(f"{group} does not tell")
