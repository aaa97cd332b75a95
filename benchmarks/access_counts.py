"""What it costs to count accesses: time of a lookup, and memory, each in a fresh process.

The mix is a batch of the Criteo Kaggle set: 26 tables, one lookup of each for each of 2,048
inputs, popularity by Zipf's law with exponent 1.05 over shuffled rows. The hard cases: all
lookups in one table of 100 million rows, popularity as before or all rows alike, so that the pool
is always full and nearly every lookup is of a row that is not in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainobs.access import AccessCounts

# fmt: off
KAGGLE = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27,
          14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572)
# fmt: on
BATCH = 2048
EXPONENT = 1.05
CASES = {
    "kaggle_mix": (KAGGLE, EXPONENT),
    "small_tables": (tuple(rows for rows in KAGGLE if rows < 20_000), EXPONENT),
    "100m_rows": ((100_000_000,), EXPONENT),
    "100m_rows_alike": ((100_000_000,), 0.0),
}


def measure(*, quick: bool) -> dict[str, Any]:
    """For each case ns a lookup, ns an input offered to the sample, ms to save, MiB at most."""
    lookups = 2_000_000 if quick else 20_000_000
    return {name: _in_fresh_process(name, lookups) for name in CASES}


def _in_fresh_process(case: str, lookups: int) -> dict[str, float]:
    command = [sys.executable, __file__, case, str(lookups)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def batches(rows: tuple[int, ...], exponent: float, lookups: int) -> Iterator[list[Any]]:
    """Ids of each table, batch after batch."""
    random = np.random.default_rng(7)
    for _ in range(lookups // (len(rows) * BATCH)):
        yield [_draw(random, count, exponent) for count in rows]


def _draw(random: np.random.Generator, rows: int, exponent: float) -> Any:
    """Ranks by the inverse of the continuous distribution, spread over the table."""
    uniform = random.random(BATCH)
    if not exponent:
        return (uniform * rows).astype(np.int64)
    power = 1 - exponent
    ranks = ((uniform * ((rows + 1) ** power - 1)) + 1) ** (1 / power)
    return (ranks.astype(np.int64) * 2_654_435_761) % rows


def _memory_mib(field: str) -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024


def _run(case: str, lookups: int) -> dict[str, float]:
    rows, exponent = CASES[case]
    names = [f"table {at}" for at in range(len(rows))]
    lengths = np.ones((len(rows), BATCH), np.int64)
    for _ in batches(rows, exponent, 2 * len(rows) * BATCH):
        pass  # what numpy keeps for itself is not ours
    before = _memory_mib("VmRSS:")
    counts = AccessCounts(dict(zip(names, rows, strict=True)))
    count_ns = sample_ns = done = inputs = 0
    for batch in batches(rows, exponent, lookups):
        begin = time.perf_counter_ns()
        for name, ids in zip(names, batch, strict=True):
            counts.add(name, ids)
        counted = time.perf_counter_ns()
        counts.add_inputs(names, np.concatenate(batch), lengths)
        sample_ns += time.perf_counter_ns() - counted
        count_ns += counted - begin
        done += len(rows) * BATCH
        inputs += BATCH
    held = _memory_mib("VmRSS:")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "counts.npz")
        begin = time.perf_counter_ns()
        counts.save(path)
        save_ns = time.perf_counter_ns() - begin
        size = path.stat().st_size
    return {
        "lookups": done,
        "ns_per_lookup": round(count_ns / done, 1),
        "ns_per_input_sampled": round(sample_ns / inputs, 1),
        "save_ms": round(save_ns / 1e6, 1),
        "file_mib": round(size / 2**20, 1),
        "held_mib": round(held - before, 1),
        "peak_mib": round(_memory_mib("VmHWM:") - before, 1),
        "largest_error_ratio": max(counts.error(n) / max(counts.total(n), 1) for n in names),
    }


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], int(sys.argv[2]))))
