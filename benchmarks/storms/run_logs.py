"""Run logs, changed at random, given to every reader of one.

Usage: python -m benchmarks.storms.run_logs [--count N] [--seed N]

Each number from --seed on is a run log of its own: --seed 4711 --count 1 gives one again. Prints
JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.storms.mutations import mutate
from benchmarks.storms.processes import train
from benchmarks.storms.readers import READERS, readings

PATIENCE_S = 60.0
"""What one run log may take, with all readers."""

BATCH = 50
"""Run logs that a process tries before the next one takes its place."""

KINDS = {
    "workers": (["--steps", "24", "--workers", "2"], 1),
    "ranks": (["--steps", "24"], 2),
    "unfinished": (["--steps", "0"], 1),
}
"""Name -> arguments of the training whose run log is changed, and its ranks."""


def main() -> None:
    """Try as many run logs as were asked for."""
    parser = argparse.ArgumentParser(description="Give damaged run logs to every reader.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bases", type=Path, help="where trainings are kept for the next time")
    parser.add_argument("--keep", type=Path, help="where to copy the run logs that make trouble")
    parser.add_argument("--readers", type=int, default=3, help="drawn for each, of 10")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainobs-storm-") as folder:
        bases = trained(options.bases or Path(folder, "bases"))
        seeds = range(options.seed, options.seed + options.count)
        print(
            json.dumps(storm(bases, seeds, Path(folder), options.keep, options.readers), indent=2)
        )


def trained(folder: Path) -> list[Path]:
    """Run logs of short trainings, made where they are not there yet."""
    for name, (words, ranks) in KINDS.items():
        if not (folder / name / "run" / "run.json").exists():
            train(
                folder / name, *words, ranks=ranks, end_after=24 if name == "unfinished" else None
            )
    return [folder / name / "run" for name in KINDS]


def storm(
    bases: list[Path],
    seeds: range,
    folder: Path,
    keep: Path | None = None,
    reader_count: int = len(READERS),
) -> dict[str, Any]:
    """Change a run log by each seed, and read it.

    Returns:
        `tried`, `refused` (readings that ended with three lines), `read`; `troubles`: seed -> what
        was done, which reader, and what came; of all readings the longest and the largest.
    """
    results: list[dict[str, Any]] = []
    for _ in readings(bases[0], bases[0], folder):  # imports, which forked children then have
        pass
    next_seed = seeds.start
    while next_seed < seeds.stop:
        end = min(seeds.stop, next_seed + BATCH)
        found = _in_child(bases, range(next_seed, end), folder, keep, reader_count)
        results += found
        next_seed = results[-1]["seed"] + 1
    worst = max(results, key=lambda result: result["seconds"])
    largest = max(results, key=lambda result: result["peak_bytes"])
    counts = sum((Counter(result["readings"]) for result in results), Counter())
    return {
        "tried": len(results),
        "readings": dict(counts),
        "troubles": [result for result in results if result["troubles"]],
        "longest": {name: worst[name] for name in ("seed", "seconds", "slowest", "done")},
        "largest": {name: largest[name] for name in ("seed", "peak_bytes", "widest", "done")},
    }


def _in_child(
    bases: list[Path], seeds: range, folder: Path, keep: Path | None, reader_count: int
) -> list[dict[str, Any]]:
    """Results of as many seeds as a forked child came through; the last may be of its end."""
    answers, told = os.pipe()
    child = os.fork()
    if not child:
        os.close(answers)
        with os.fdopen(told, "w") as file:
            for seed in seeds:
                print(json.dumps({"seed": seed}), file=file, flush=True)
                print(
                    json.dumps(_try(bases, seed, folder, keep, reader_count)), file=file, flush=True
                )
        os._exit(0)
    os.close(told)
    with os.fdopen(answers) as lines:
        told_lines = _lines(lines, child)
    _, status = os.waitpid(child, 0)
    results = [line for line in told_lines if "done" in line]
    if len(results) < len(told_lines) - len(results):
        seed = told_lines[-1]["seed"]
        died = {"hung or died": f"wait status {status}"}
        results.append(_result(seed, ["?"], died))
    return results


def _lines(stream: Any, child: int) -> list[dict[str, Any]]:
    """What the child says, until it ends or says nothing for too long."""
    found, rest = [], ""
    while select.select([stream], [], [], PATIENCE_S)[0]:
        data = os.read(stream.fileno(), 1 << 16).decode()
        if not data:
            return found
        *whole, rest = (rest + data).split("\n")
        found += map(json.loads, whole)
    os.kill(child, 9)
    return found


def _try(
    bases: list[Path], seed: int, folder: Path, keep: Path | None, reader_count: int
) -> dict[str, Any]:
    draw = random.Random(seed)
    base, sound = draw.choice(bases), bases[0]
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(base, run)
    done = mutate(run, draw)
    found = list(readings(run, sound, folder, draw.sample(READERS, reader_count)))
    troubles = {reading.reader: reading.trouble for reading in found if reading.trouble}
    if troubles and keep:
        subprocess.run(["cp", "-a", run, keep / str(seed)], check=True)  # pipes, too
    longest = max(found, key=lambda reading: reading.seconds)
    widest = max(found, key=lambda reading: reading.peak_bytes)
    kinds = Counter("refused" if r.refused else "trouble" if r.trouble else "read" for r in found)
    return _result(seed, done, troubles) | {
        "readings": kinds,
        "seconds": round(longest.seconds, 3),
        "slowest": longest.reader,
        "peak_bytes": widest.peak_bytes,
        "widest": widest.reader,
    }


def _result(seed: int, done: list[str], troubles: dict[str, str]) -> dict[str, Any]:
    return {
        "seed": seed,
        "done": done,
        "troubles": troubles,
        "readings": {},
        "seconds": PATIENCE_S,
        "slowest": "?",
        "peak_bytes": 0,
        "widest": "?",
    }


if __name__ == "__main__":
    sys.exit(main())
