"""A training that has too little memory, because something beside it has it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from faults.fault import Unavailable
from faults.groups import JOIN, group
from faults.loops import loader, train

LIMIT_BYTES = 1 << 30
HOG_BYTES = 700 << 20
TABLE_BYTES = 512 << 20
ROWS_PER_STEP = 16
ROW_VALUES = 1024

_HOG = """
import os, sys, time
open(sys.argv[1], "w").write(str(os.getpid()))
held = bytearray(int(sys.argv[2]))
while True:
    for page in range(0, len(held), 4096):
        held[page] ^= 1
    print("held", flush=True)
    time.sleep(0.5)
"""


@contextmanager
def hog(files: Path) -> Iterator[dict[str, str]]:
    """A control group of 1 GiB in which another process holds 700 MiB."""
    with group("memory", {"memory.max": str(LIMIT_BYTES)}) as folder:
        procs = str(folder / "cgroup.procs")
        command = [sys.executable, "-S", "-c", _HOG, procs, str(HOG_BYTES)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            assert process.stdout
            if not process.stdout.readline():
                raise Unavailable("the hog was killed")
            yield {JOIN: procs}
        finally:
            process.kill()
            process.wait()


def memory_hog(files: Path, run_dir: Path) -> None:
    """Each step looks 16 rows up in a mapped table of 512 MiB, which would fit without the hog."""
    path = files / "table.bin"
    rows = TABLE_BYTES // (4 * ROW_VALUES)
    np.lib.format.open_memmap(path, "w+", np.float32, (rows, ROW_VALUES)).fill(1)
    table = np.load(path, mmap_mode="r")
    random = np.random.default_rng(0)

    def lookup(step: int) -> None:
        table[random.integers(0, rows, ROWS_PER_STEP)].sum()

    train(run_dir, loader(60), in_forward=lookup)
