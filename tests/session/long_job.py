"""A run of many tiny steps; prints now and then how much memory it holds.

Usage: python long_job.py RUN_DIR STEPS
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

from trainobs import observe

PAUSE_EVERY = 32
TELL_EVERY = 250


class Mallinfo2(ctypes.Structure):
    """mallinfo2(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def allocated_bytes() -> int:
    """Memory in use, as the C library knows it."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    info = mallinfo2()
    return info.uordblks + info.hblkhd


def resident_bytes() -> int:
    """Memory held, used or not."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    with observe(run_dir=sys.argv[1]) as obs, open(__file__, "rb", buffering=0) as file:
        print("level", obs.level)
        for step in range(int(sys.argv[2])):
            with obs.step(), obs.phase("forward"):
                os.pread(file.fileno(), 100, 0)
            if step % PAUSE_EVERY == 0:
                time.sleep(0.001)
            if step % TELL_EVERY == 0:
                print(step, allocated_bytes(), resident_bytes(), flush=True)


if __name__ == "__main__":
    main()
