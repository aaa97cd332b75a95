"""Compare the cost of trainobs with that of other tools: `make bench-peers`.

A round runs each loop under each tool once, in a fresh process, the tools in random order. What a
tool costs is the ratio of its mean step to that of the bare loop of the same round; the table gives
the median over the rounds. Rounds are made until the time is up; a full run goes to
`benchmarks/results/` as JSON and to `docs/peers.md` as tables.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.files import make_files
from benchmarks.peers import tables
from benchmarks.peers.cell import Settings, run_cell
from benchmarks.peers.processes import adopt_orphans
from benchmarks.peers.tools import BARE, TOOLS, versions
from trainobs.host.facts import host_facts

LOOPS = ("light", "heavy", "syscalls")
RESULTS = Path(__file__).parents[1] / "results"
FULL, QUICK = Settings(warm_up_s=0.8, window_s=4.7), Settings(warm_up_s=0.2, window_s=0.5)
"""A full run's 5.5 s hold one of the flushes that trainobs makes every 5 s."""


def main() -> None:
    """Measure, and write down what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=14, help="rounds are begun that fit in")
    parser.add_argument("--quick", action="store_true", help="one round of half a second a run")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, help="these only, and the bare loop")
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=LOOPS, help="these only")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the runs")
    parser.add_argument("--output", type=Path, help="write the JSON there, and no page")
    options = parser.parse_args()
    names = [name for name in TOOLS if name in {BARE, *(options.tools or TOOLS)}]

    adopt_orphans()
    full = not (options.output or options.quick or options.tools or options.loops != LOOPS)
    path = RESULTS / f"peers-{time.strftime('%Y-%m-%d')}.json" if full else options.output
    for results in measure(names, options):
        if path:  # after each round, so that an interrupted run is not lost
            path.write_text(json.dumps(results, indent=1) + "\n")
    print(tables.render(results))
    if full:
        tables.update(results, path)
        print(f"written: {path} and {tables.PAGE}")


def measure(names: list[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Make rounds until the time is up, and yield what was measured so far after each.

    A tool that is missing or fails is left out, with the reason.
    """
    begin = time.monotonic()
    missing = {name: why for name in names if (why := TOOLS[name].missing())}
    names = [name for name in names if name not in missing]
    results: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": host_facts(),
        "versions": versions(),
        "load_before": round(os.getloadavg()[0], 2),
        "settings": asdict(QUICK if options.quick else FULL),
        "missing": missing,
        "rounds": [],
    }
    order = random.Random(options.seed)
    longest_s = 0.0
    with tempfile.TemporaryDirectory(prefix="trainobs-peers-") as folder:
        data = Path(folder, "files")
        make_files(data)
        while not results["rounds"] or _fits(begin, longest_s, options):
            before = time.monotonic()
            results["rounds"].append(_round(names, data, order, options))
            longest_s = max(longest_s, time.monotonic() - before)
            results["minutes"] = round((time.monotonic() - begin) / 60, 1)
            yield results


def _fits(begin: float, longest_s: float, options: argparse.Namespace) -> bool:
    """Whether another round as long as the longest would end in time."""
    return not options.quick and time.monotonic() - begin + longest_s < options.minutes * 60


def _round(
    names: list[str], data: Path, order: random.Random, options: argparse.Namespace
) -> list[dict[str, Any]]:
    cells = []
    for loop in options.loops:
        for name in order.sample(names, len(names)):
            cell = run_cell(loop, name, data, QUICK if options.quick else FULL)
            print(loop, name, cell.get("failed") or f"{cell['mean_step_us']} us", flush=True)
            cells.append(cell)
    return cells


if __name__ == "__main__":
    main()
