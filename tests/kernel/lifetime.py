"""Which programs a process holds, and whether the kernel still has them."""

from __future__ import annotations

import time
from pathlib import Path

from tests.kernel_state import program_ids

PATIENCE_S = 60.0
"""The kernel unloads some time after the last descriptor is closed."""


def own_programs() -> set[int]:
    """Ids of the programs of which this process has a descriptor."""
    lines = [
        line
        for path in Path("/proc/self/fdinfo").iterdir()
        if path.exists()  # but for the listing's own
        for line in path.read_text().splitlines()
    ]
    return {int(line.split()[1]) for line in lines if line.startswith("prog_id:")}


def still_loaded(programs: set[int], patience_s: float = PATIENCE_S) -> set[int]:
    """Those of some programs that the kernel does not unload in time."""
    deadline = time.monotonic() + patience_s
    while (left := programs & program_ids()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left
