"""Run logs, changed at random, given to every reader of one.

Usage: python -m benchmarks.storms.run_logs [--count N] [--seed N] [--results FILE]

Each number from --seed on is a run log of its own: --seed 4711 --count 1 gives one again. What is
in a file of results is not tried again: a storm that was ended goes on. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.storms.mutations import mutate
from benchmarks.storms.processes import train
from benchmarks.storms.readers import READERS, readings

PATIENCE_S = 60.0
"""CPU time that one run log may take, with all readers."""

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
    parser.add_argument("--readers", type=int, default=1, help=f"drawn of {len(READERS)}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="run logs at one time")
    parser.add_argument("--results", type=Path, help="where the results are kept, one a line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainobs-storm-") as folder:
        bases = trained(options.bases or Path(folder, "bases"))
        work = Work(bases, Path(folder), options.keep, options.readers)
        seeds = range(options.seed, options.seed + options.count)
        found = storm(work, seeds, options.jobs, options.results or Path(folder, "results"))
        print(json.dumps(found, indent=2))


def trained(folder: Path) -> list[Path]:
    """Run logs of short trainings, made where they are not there yet."""
    for name, (words, ranks) in KINDS.items():
        if not (folder / name / "run" / "run.json").exists():
            train(
                folder / name, *words, ranks=ranks, end_after=24 if name == "unfinished" else None
            )
    return [folder / name / "run" for name in KINDS]


class Work(NamedTuple):
    """How run logs are tried.

    Attributes:
        bases: those that are changed.
        folder: for what is written meanwhile.
        keep: where those that make trouble are copied to.
        readers: that are drawn for each.
    """

    bases: list[Path]
    folder: Path
    keep: Path | None
    readers: int


def storm(work: Work, seeds: range, jobs: int, file: Path) -> dict[str, Any]:
    """Change a run log by each seed, and read it, but for those whose results are in a file.

    Returns:
        `tried`, `refused` (readings that ended with three lines), `read`; `troubles`: seed -> what
        was done, which reader, and what came; of all readings the longest and the largest.
    """
    lines = file.read_text().splitlines() if file.exists() else []
    results = [result for result in map(json.loads, lines) if result["seed"] in seeds]
    known = {result["seed"] for result in results}
    left = [seed for seed in seeds if seed not in known]
    batches = [left[at : at + BATCH] for at in range(0, len(left), BATCH)]
    for _ in readings(work.bases[0], work.bases[0], work.folder):  # imports, for forked children
        pass
    with file.open("a") as kept, ProcessPoolExecutor(jobs, get_context("fork")) as pool:
        for found in pool.map(partial(_batch, work), batches):
            kept.writelines(f"{json.dumps(result)}\n" for result in found)
            kept.flush()
            results += found
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


def _batch(work: Work, seeds: list[int]) -> list[dict[str, Any]]:
    """Results of some seeds; where one ends its process, another one goes on behind it."""
    results: list[dict[str, Any]] = []
    while len(results) < len(seeds):
        found = _in_child(work, seeds[len(results) :])
        if not found:
            raise RuntimeError("the process that tries run logs ended before the first")
        results += found
    return results


def _in_child(work: Work, seeds: list[int]) -> list[dict[str, Any]]:
    """Results of as many seeds as a forked child came through; the last may be of its end."""
    answers, told = os.pipe()
    child = os.fork()
    if not child:
        os.close(answers)
        with tempfile.TemporaryDirectory(dir=work.folder) as folder, os.fdopen(told, "w") as file:
            for seed in seeds:
                print(json.dumps({"seed": seed}), file=file, flush=True)
                print(json.dumps(_try(work, seed, Path(folder))), file=file, flush=True)
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
    """What the child says, until it ends, or waits, or computes for too long."""
    found: list[dict[str, Any]] = []
    rest, told_at_s, seen_at_s = "", 0.0, -1.0
    while True:
        if select.select([stream], [], [], PATIENCE_S / 2)[0]:
            data = os.read(stream.fileno(), 1 << 16).decode()
            if not data:
                return found
            *whole, rest = (rest + data).split("\n")
            found += map(json.loads, whole)
            told_at_s, seen_at_s = _cpu_s(child), -1.0
        elif (spent_s := _cpu_s(child)) == seen_at_s or spent_s > told_at_s + PATIENCE_S:
            os.kill(child, signal.SIGKILL)
            return found
        else:
            seen_at_s = spent_s


def _cpu_s(child: int) -> float:
    """CPU time of it: on a busy machine the clock tells nothing."""
    user, system = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _try(work: Work, seed: int, folder: Path) -> dict[str, Any]:
    draw = random.Random(seed)
    base, sound = draw.choice(work.bases), work.bases[0]
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(base, run)
    done = mutate(run, draw)
    found = list(readings(run, sound, folder, draw.sample(READERS, work.readers)))
    troubles = {reading.reader: reading.trouble for reading in found if reading.trouble}
    if troubles and work.keep:
        subprocess.run(["cp", "-a", run, work.keep / str(seed)], check=True)  # pipes, too
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
