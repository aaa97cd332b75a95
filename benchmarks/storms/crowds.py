"""Much of everything: runs at once into one place, steps, embedding tables.

Usage: python -m benchmarks.storms.crowds [--runs 64] [--steps 1000000] [--tables 5000]

Runs that begin at once with one name must each have a directory and all their steps. A long run is
read back, and its memory told. A model with many tables trains as it does unobserved, and each of
its tables is in the log. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.storms.processes import stepping, train
from trainobs.analysis.loaded import LoadedRun
from trainobs.runlog.reader import RunLog

STEPS_EACH = 100


def main() -> None:
    """Try each that was asked for; 0 leaves it out."""
    parser = argparse.ArgumentParser(description="Many runs, steps and tables.")
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--tables", type=int, default=5000)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="trainobs-storm-") as folder:
        if options.runs:
            found["runs"] = runs(Path(folder, "runs"), options.runs)
        if options.steps:
            found["steps"] = steps(Path(folder, "steps"), options.steps)
        if options.tables:
            found["tables"] = tables(Path(folder), options.tables)
    print(json.dumps(found, indent=2))


def runs(folder: Path, count: int) -> dict[str, Any]:
    """Runs that begin at once, with one name."""
    every = [stepping(folder, "--steps", str(STEPS_EACH)) for _ in range(count)]
    told = [process.communicate(timeout=600) for process in every]
    places = {line.split()[1] for out, _ in told for line in out.splitlines() if "begun" in line}
    complete = 0
    for place in places:
        numbers = RunLog.open(place).ranks[0].step()
        complete += np.array_equal(numbers[numbers >= 0], np.arange(STEPS_EACH))
    troubles = [err[-1000:] for _, err in told if err]
    if len(places) < count or complete < count:
        troubles.append(f"{len(places)} directories, {complete} of them complete")
    return {"tried": count, "complete": int(complete), "troubles": troubles}


def steps(folder: Path, count: int) -> dict[str, Any]:
    """A run of very many short steps."""
    process = stepping(folder, "--steps", str(count), "--step-ms", "0.05", "--flush-s", "1")
    begin = time.monotonic()
    out, err = process.communicate()
    took = time.monotonic() - begin
    run = RunLog.open(folder / "run")
    numbers = run.ranks[0].step()
    kept = int((numbers >= 0).sum())
    lost = sum(((run.info["summary"] or {}).get("lost_steps") or {}).values())
    begin = time.monotonic()
    summary = LoadedRun(folder / "run").summary
    troubles = [err[-1000:]] if err else []
    if kept + lost + (summary["lost"]["events"] or 0) < count:
        troubles.append(f"{kept} kept, {lost} told to be lost")
    return {
        "tried": count,
        "kept": kept,
        "told_lost": lost + (summary["lost"]["events"] or 0),
        "seconds": round(took, 1),
        "report_seconds": round(time.monotonic() - begin, 1),
        "report_peak_bytes": _peak_bytes(),
        "troubles": troubles,
    }


def tables(folder: Path, count: int) -> dict[str, Any]:
    """A model with very many tables, beside the same training unobserved."""
    words = ["--steps", "6", "--tables", str(count)]
    plain, observed = (
        train(folder / name, *words, *more).splitlines()[-1]
        for name, more in (("plain", ["--plain"]), ("observed", []))
    )
    run = RunLog.open(folder / "observed" / "run")
    looked_up = LoadedRun(run.path).embeddings
    names = len(set(looked_up["table"].to_pylist())) if looked_up is not None else 0
    troubles = [] if plain == observed else ["the losses differ"]
    if names < count:
        troubles.append(f"{names} tables in the log")
    return {"tried": count, "in_the_log": names, "troubles": troubles}


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    sys.exit(main())
