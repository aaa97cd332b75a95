"""What the hypervisor takes from the CPUs: on a busy host as much as from any other thread."""

from __future__ import annotations

import os
from pathlib import Path


def stolen_ns(cpu: int | None = None) -> int:
    """Taken so far from one CPU or from all: in no clock of the threads there but the wall's."""
    wanted = "cpu" if cpu is None else f"cpu{cpu}"
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name == wanted:
            return int(ticks[7]) * 10**9 // os.sysconf("SC_CLK_TCK")
    raise AssertionError(f"/proc/stat has no {wanted}")
