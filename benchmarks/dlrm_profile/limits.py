"""What one core of this machine can do at best: the roofs under which the parts of a model are."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

MATRIX = 1024
COPIED_VALUES = 1 << 26
ROW_VALUES, ROWS, TAKEN = 16, 1 << 24, 1 << 18


def measure() -> dict[str, float]:
    """Return the most operations and bytes a second, and the most bytes of rows in random order."""
    torch.set_num_threads(1)
    matrix = torch.randn(MATRIX, MATRIX)
    values, copy = torch.zeros(COPIED_VALUES), torch.zeros(COPIED_VALUES)
    table = torch.zeros(ROWS, ROW_VALUES)
    rows = torch.randint(ROWS, (TAKEN,))
    taken = torch.zeros(TAKEN, ROW_VALUES)
    return {
        "gflop_per_s": 2 * MATRIX**3 / best(lambda: matrix @ matrix) / 1e9,
        "copied_gb_per_s": 2 * values.nbytes / best(lambda: copy.copy_(values)) / 1e9,
        "random_rows_gb_per_s": 2
        * taken.nbytes
        / best(lambda: torch.index_select(table, 0, rows, out=taken))
        / 1e9,
    }


def best(work: Callable[[], object], seconds: float = 2.0) -> float:
    """Return the shortest time that the work took, of as many as fit the seconds."""
    times = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
