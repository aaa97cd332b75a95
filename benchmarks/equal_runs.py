"""How often does `trainobs compare` name a difference between equal runs?

    python benchmarks/equal_runs.py [--runs N] [--keep DIR] [--label LABEL]

Runs one small training N times, one after another: 160 steps of some 8 ms with one loader worker,
each in a process of its own, which is forked from one that has imported torch. All of them are
equal, so whatever a comparison of them names is false. The runs are cut into groups of six in the
order in which they ran; no run is in two groups. Each group is compared as 3 runs against 3,
alternating (A B A B A B) and one side after the other (A A A B B B), and each neighbouring pair as
one run against one. `--keep` keeps the runs in DIR, and runs only those that are missing there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainobs.host.facts import host_facts

RESULTS = Path(__file__).parent / "results"
STEPS, BATCH, WIDTH = 160, 64, 512
A_SIDE = 3


def train(run_dir: Path) -> None:
    """The training: batches that a worker computes, and a small network on one thread."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    from trainobs import observe

    class Waves(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return STEPS * BATCH

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.linspace(0, index % 7, WIDTH).sin()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = (torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.ReLU(), torch.nn.Linear(2 * WIDTH, WIDTH))
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    loader = DataLoader(Waves(), BATCH, num_workers=1, multiprocessing_context="fork")
    with observe(run_dir=run_dir, quiet=True) as obs:
        for batch in obs.loader(loader):
            with obs.step():
                with obs.phase("forward"):
                    loss = (model(batch) - batch).square().mean()
                with obs.phase("backward"):
                    loss.backward()
                with obs.phase("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()


def make_runs(folder: Path, count: int) -> list[Path]:
    """Equal runs in the order in which they ran, made where they are missing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "trainobs.integrations.plain"])
    runs = [folder / f"{number:04d}" for number in range(count)]
    for number, run in enumerate(runs):
        if not (run / "run.json").exists():
            print(f"run {number + 1} of {count}", end="\r", flush=True)
            process = context.Process(target=train, args=(run,))
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(f"run {number} failed")
    return runs


def judge(pairs: Sequence[tuple[Sequence[Path], Sequence[Path]]]) -> dict[str, Any]:
    """How many comparisons name a difference, of the step and of any part of it."""
    from trainobs.analysis.comparison.two_sides import compare
    from trainobs.runlog.reader import RunLog

    found = [compare(*([RunLog.open(run) for run in side] for side in pair)) for pair in pairs]
    widths = [math.log(one["gain_interval"][1] / one["gain_interval"][0]) / 2 for one in found]
    return {
        "pairs": len(found),
        "false_claims": sum(one["answer"] != "none" for one in found),
        "pairs_with_a_false_part": sum(
            any(part["claim"] for part in one["parts"]) for one in found
        ),
        "median_half_width": round(statistics.median(widths), 4),
        "largest_difference": round(max(abs(math.log(one["gain"])) for one in found), 4),
    }


def measure(folder: Path, count: int) -> dict[str, Any]:
    """Make the runs and compare them."""
    from trainobs.analysis.comparison.two_sides import compare
    from trainobs.runlog.reader import RunLog

    runs = make_runs(folder, count)
    groups = [runs[first : first + 2 * A_SIDE] for first in range(0, count, 2 * A_SIDE)]
    means, others = [], []
    for one, other in zip(runs[::2], runs[1::2], strict=True):
        found = compare([RunLog.open(one)], [RunLog.open(other)])
        means += found["step_ns"]
        told = {of["name"]: of["values"] for of in found["conditions"]}
        others += [one for one in told.get("sched/others_cpu_ratio", []) if one is not None]
    logs = [math.log(mean) for mean in means]
    return {
        "machine": {**host_facts(), "hostname": None},
        "date": time.strftime("%Y-%m-%d"),
        "cpu_taken_by_others": round(statistics.fmean(others), 3) if others else None,
        "runs": count,
        "steps_of_a_run": STEPS,
        "step_ms": round(statistics.fmean(means) / 1e6, 3),
        "spread_of_runs": round(statistics.stdev(logs), 4),
        "spread_of_neighbours": round(_neighbours(logs), 4),
        "3 runs a side, alternating": judge([(group[::2], group[1::2]) for group in groups]),
        "3 runs a side, in turn": judge([(group[:A_SIDE], group[A_SIDE:]) for group in groups]),
        "1 run a side": judge([([a], [b]) for a, b in zip(runs[::2], runs[1::2], strict=True)]),
        "step_ms_of_runs": [round(mean / 1e6, 3) for mean in means],
    }


def _neighbours(logs: Sequence[float]) -> float:
    """Standard deviation of a run as two that follow each other show it."""
    squares = [(b - a) ** 2 / 2 for a, b in zip(logs[::2], logs[1::2], strict=True)]
    return math.sqrt(statistics.fmean(squares))


def main() -> None:
    """Measure, and write down what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=240, help="how many runs; a multiple of six")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the runs are kept")
    parser.add_argument("--label", default="", help="put into the name of the file")
    options = parser.parse_args()
    temporary = tempfile.TemporaryDirectory(prefix="trainobs-bench-")
    with contextlib.nullcontext(options.keep) if options.keep else temporary as folder:
        found = measure(Path(folder), options.runs)
    path = RESULTS / f"equal-runs-{options.label}{found['date']}.json"
    path.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps({k: v for k, v in found.items() if k != "step_ms_of_runs"}, indent=2))
    print(f"written: {path}")


if __name__ == "__main__":
    main()
