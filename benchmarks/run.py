"""Measure what observing costs: `python benchmarks/run.py [--quick] [--only NAME]`, `make bench`.

Loops are compared by the ruler (`benchmarks/ruler.py`). The whole is laid out for 20 minutes on a
quiet machine; the results say how long each case took. They go to `benchmarks/results/` as JSON,
and as tables into `docs/performance.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import access_counts
import hot_path
import imagenet
import in_the_loop
import instructions
import light
import lookups
import page
import small_files
import startup
import system_calls

from trainobs.host.facts import host_facts

CASES = {
    "startup": startup.measure,
    "hot_path": hot_path.measure,
    "instructions": instructions.measure,
    "in_the_loop": in_the_loop.measure,
    "system_calls": system_calls.measure,
    "light": light.measure,
    "small_files": small_files.measure,
    "imagenet": imagenet.measure,
    "lookups": lookups.measure,
    "access_counts": access_counts.measure,
}
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run the cases and write down what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds; writes no results")
    parser.add_argument("--only", choices=CASES, action="append", help="run only this case")
    arguments = parser.parse_args()
    results: dict[str, Any] = {
        "machine": host_facts(),
        "date": time.strftime("%Y-%m-%d"),
        "load_before": os.getloadavg()[0],
    }
    for name in arguments.only or CASES:
        print(f"{name} ...", flush=True)
        begin = time.monotonic()
        results[name] = CASES[name](quick=arguments.quick)
        results.setdefault("seconds", {})[name] = round(time.monotonic() - begin)
        print(json.dumps(results[name], indent=2), flush=True)
    if not (arguments.quick or arguments.only):
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"cost-{results['date']}.json"
        path.write_text(json.dumps(results, indent=2) + "\n")
        page.update(results, path)
        print(f"written: {path} and {page.PAGE}")


if __name__ == "__main__":
    main()
