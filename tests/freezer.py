"""Control groups of version 2, which can be frozen."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def group() -> Iterator[Path]:
    """An empty one; whoever is in it at the end is killed, frozen or not."""
    for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        if (root / "cgroup.controllers").exists() and os.access(root, os.W_OK):
            break
    else:
        pytest.skip("no control group of version 2 can be made here")
    made = root / f"trainobs-frozen-{os.getpid()}"
    made.mkdir()
    try:
        yield made
    finally:
        (made / "cgroup.kill").write_text("1")
        while "populated 1" in (made / "cgroup.events").read_text():
            time.sleep(0.01)
        made.rmdir()


@contextmanager
def frozen(group: Path) -> Iterator[None]:
    """All who are in it stand still meanwhile."""
    (group / "cgroup.freeze").write_text("1")
    try:
        yield
    finally:
        (group / "cgroup.freeze").write_text("0")
