"""Runs that end, or stand still, at a random moment: what their logs then hold.

Usage: python -m benchmarks.storms.kills [--count N] [--seed N] [--probes auto] [--writers]

A signal is sent to each run after a random time, from before it has begun to after some hundred
steps. The log must be readable, with every step up to the last flush, or say that nothing was
recorded; nothing may be left in the kernel. Stopped runs go on, and end well. With --writers each
has a writer process; every other one of these is killed or stopped before. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM
from typing import Any

import numpy as np

from benchmarks.storms.processes import stepping
from tests.session.writers import writer_of, writers
from trainobs.core.errors import RunLogError
from trainobs.runlog.reader import RunLog
from trainobs.session.sink_router import SWITCH

SIGNALS = (SIGKILL, SIGTERM, SIGINT, SIGSTOP)
AT_ONCE = 4
FLUSH_S = 0.1


def main() -> None:
    """End as many runs as were asked for."""
    parser = argparse.ArgumentParser(description="End runs at random moments.")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--probes", default="off")
    parser.add_argument("--writers", action="store_true")
    options = parser.parse_args()
    os.environ[SWITCH] = "process" if options.writers else "thread"
    # A job in the background ignores it, and so would the runs.
    signal.signal(SIGINT, signal.default_int_handler)
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="trainobs-storm-") as folder:
        results = [
            result
            for at in range(0, options.count, AT_ONCE)
            for result in _some(Path(folder, str(at)), draw, options.probes)
        ]
    kinds = Counter(f"{result['signal']}: {result['found']}" for result in results)
    lost = [result["lost"] for result in results if result["found"] == "read"]
    print(
        json.dumps(
            {
                "tried": len(results),
                "found": dict(sorted(kinds.items())),
                "most_steps_lost": max(lost, default=0),
                "median_steps_lost": float(np.median(lost)) if lost else 0,
                "troubles": [result for result in results if result["trouble"]],
            },
            indent=2,
        )
    )


def _some(folder: Path, draw: random.Random, probes: str) -> list[dict[str, Any]]:
    """Begin some runs, signal each, and look at what they left."""
    places = [folder / str(number) for number in range(AT_ONCE)]
    runs = [stepping(place, "--probes", probes, "--flush-s", str(FLUSH_S)) for place in places]
    return [_end(place, run, draw) for place, run in zip(places, runs, strict=True)]


def _end(place: Path, process: Any, draw: random.Random) -> dict[str, Any]:
    """Three of four runs are ended after they have begun, the others perhaps before."""
    begun = process.stdout.readline() if draw.random() < 0.75 else ""
    time.sleep(draw.uniform(0.0, 1.0))
    writer = writer_of(process.pid)
    if writer and draw.random() < 0.5:
        _disturb(writer, draw)
    number = draw.choice(SIGNALS)
    process.send_signal(number)
    if number == SIGSTOP:
        time.sleep(1.0)
        process.send_signal(SIGCONT)
        time.sleep(0.3)
        process.send_signal(SIGTERM)
    out, err = process.communicate(timeout=60)
    while writer in writers():  # it still writes what it was handed
        time.sleep(0.01)
    return _left(place, number, begun + out, err)


def _disturb(writer: int, draw: random.Random) -> None:
    """Kill a writer process, or have it stand still for a while, and then perhaps kill it."""
    for number in draw.choice(((SIGKILL,), (SIGSTOP, SIGKILL), (SIGSTOP, SIGCONT))):
        os.kill(writer, number)
        time.sleep(draw.uniform(0.0, 1.0))


def _left(place: Path, number: int, out: str, err: str) -> dict[str, Any]:
    """What a run left, held against the steps that it said it took."""
    lines = out.splitlines()
    steps = [int(line) for line in lines if line.isdecimal()]
    result = {"signal": signal.Signals(number).name, "lost": 0, "trouble": ""}
    if not any(line.startswith("begun") for line in lines):
        return result | {"found": "not begun"}
    try:
        rank = RunLog.open(place / "run")
    except RunLogError as error:
        return result | {"found": "no log", "trouble": str(error) if len(steps) > 500 else ""}
    numbers = rank.ranks[0].step() if rank.ranks else np.empty(0)
    numbers = numbers[numbers >= 0]
    result["lost"] = max(0, len(steps) - len(numbers))
    trouble = ""
    if rank.unreadable:
        trouble = f"unreadable: {rank.unreadable}"
    elif not np.array_equal(numbers, np.arange(len(numbers))):
        trouble = "steps are missing in between"
    elif number != SIGKILL and steps and result["lost"] > 1:
        trouble = f"{result['lost']} of {len(steps)} steps lost"
    elif "Traceback" in err and number != SIGINT:
        trouble = err[-2000:]
    return result | {"found": "read", "trouble": trouble}


if __name__ == "__main__":
    sys.exit(main())
