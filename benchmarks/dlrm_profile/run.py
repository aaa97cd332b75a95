"""The baseline profile of a DLRM: `make profile-dlrm`.

Counts what each part of the model computes and moves, measures where the time of a step goes with
one and two ranks, and how skewed the lookups are. A full run goes to `benchmarks/results/` as
JSON, to `docs/images/` as pictures and into `docs/dlrm-profile.md` as tables.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.dlrm_profile import limits, page, pictures, skew, work
from trainobs.host.facts import host_facts

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"


def main() -> None:
    """Measure, and write down what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows-scale", type=float, default=1.0, help="rows of a table / Kaggle's")
    parser.add_argument("--batch-size", type=int, default=2048, help="inputs in a step, of a rank")
    parser.add_argument("--dim", type=int, default=16, help="values in a row")
    parser.add_argument("--steps", type=int, default=40, help="steps that are measured, twice")
    parser.add_argument("--rounds", type=int, default=3, help="trainings of each number of ranks")
    parser.add_argument("--inputs", type=int, default=1 << 20, help="inputs whose rows are counted")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--output", type=Path, help="write all of it in this folder, and no page")
    options = parser.parse_args()
    results = measure(options)
    folder = options.output or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"dlrm-profile-{results['date']}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    drawn = pictures.draw(results, options.output or IMAGES)
    print(page.render(results, path))
    if not options.output:
        page.update(results, path)
    print("written:", *map(str, [path, *drawn]))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return all that is on the page."""
    results: dict[str, Any] = {
        "machine": host_facts(),
        "date": time.strftime("%Y-%m-%d"),
        "load_before": os.getloadavg()[0],
        "torch": torch.__version__,
        "batch_size": options.batch_size,
        "dim": options.dim,
        "rows_scale": options.rows_scale,
        "measured_steps": options.steps,
        "rounds": options.rounds,
    }
    print("what the machine can do ...", flush=True)
    results["limits"] = limits.measure()
    print("steps ...", flush=True)
    results["steps"] = train_rounds(options)
    print("work of each part ...", flush=True)
    counted = work.count_work(options.batch_size, options.dim, options.rows_scale)
    results["work"] = {part: done._asdict() for part, done in counted.items()}
    print("lookups ...", flush=True)
    results["skew"] = skew.measure(options.inputs, options.rows_scale, options.dim)
    results["load_after"] = os.getloadavg()[0]
    return results


def train_rounds(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return, for each number of ranks, the round that other work disturbed least: the shortest."""
    rounds = [[train(options, ranks) for ranks in options.ranks] for _ in range(options.rounds)]
    return [
        {
            **min(of_ranks, key=lambda found: found["profiled_step_ms"]),
            "all_profiled_step_ms": [found["profiled_step_ms"] for found in of_ranks],
        }
        for of_ranks in zip(*rounds, strict=True)
    ]


def train(options: argparse.Namespace, ranks: int) -> dict[str, Any]:
    """Return where the time of a step goes with so many ranks."""
    with tempfile.TemporaryDirectory(prefix="trainobs-profile-") as folder:
        out = Path(folder, "step.json")
        job = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        rank = ["-m", "benchmarks.dlrm_profile.step", "--out", str(out)]
        for name in ("rows_scale", "batch_size", "dim", "steps"):
            rank += ["--" + name.replace("_", "-"), str(getattr(options, name))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *job, *rank], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(
                f"the training could not be measured\n  found: exit status {done.returncode}: "
                f"{done.stderr[-2000:]}\n  do:    run it by itself: {' '.join(rank)}"
            )
        return json.loads(out.read_text())


if __name__ == "__main__":
    main()
