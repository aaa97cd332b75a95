"""Disks that fill up, or become read-only, under a run, and take writes again.

Usage (as root): python -m benchmarks.storms.disks [--count N] [--seed N] [--writers]

Each run goes to a small tmpfs of its own, which refuses writes for a second at a random moment.
No step may be lost, for the run goes on while the disk does. With --writers each has a writer
process. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.storms.processes import stepping
from trainobs.runlog.reader import RunLog
from trainobs.session.sink_router import SWITCH

SIZE = 2 << 20


def main() -> None:
    """Try as many disks as were asked for."""
    parser = argparse.ArgumentParser(description="Refuse writes to runs for a while.")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--writers", action="store_true")
    options = parser.parse_args()
    os.environ[SWITCH] = "process" if options.writers else "thread"
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="trainobs-storm-") as folder:
        results = [_one(Path(folder, str(number)), draw) for number in range(options.count)]
    troubles = [result for result in results if result["trouble"]]
    steps = sum(result["steps"] for result in results)
    lost = sum(result["lost"] for result in results)
    kinds = [result["refused"] for result in results]
    found = {kind: kinds.count(kind) for kind in ("full", "read-only")}
    print(
        json.dumps(
            {
                "tried": len(results),
                "found": found,
                "steps": steps,
                "lost": lost,
                "troubles": troubles,
            },
            indent=2,
        )
    )


def _one(folder: Path, draw: random.Random) -> dict[str, Any]:
    refused = draw.choice(("full", "read-only"))
    with _disk(folder):
        process = stepping(folder, "--flush-s", "0.1")
        begun = process.stdout.readline() if process.stdout else ""
        time.sleep(draw.uniform(0.0, 0.5))
        _refuse(folder, refused, time.monotonic() + 1.0)
        time.sleep(draw.choice((0.0, 0.5)))
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        steps = sum(line.isdecimal() for line in (begun + out).splitlines())
        run = RunLog.open(folder / "run")
        numbers = run.ranks[0].step()
        found = int((numbers >= 0).sum())
        unreadable = run.unreadable  # while it is there to be looked at
        told = (run.info["summary"] or {}).get("lost_steps", {}).get("runlog", 0)
    trouble = err if "Traceback" in err else ""
    if unreadable or steps - found - told > 1:
        trouble += f"{steps} steps, {found} found, {told} told to be lost, {unreadable}"
    return {"refused": refused, "steps": steps, "lost": max(0, steps - found), "trouble": trouble}


def _refuse(folder: Path, how: str, until: float) -> None:
    if how == "full":
        with (folder / "filler").open("wb", buffering=0) as filler:
            while time.monotonic() < until:
                try:
                    filler.write(bytes(4096))
                except OSError:
                    time.sleep(0.01)
        (folder / "filler").unlink()
        return
    # While a file is open for writing this fails; the run's are open for a moment only.
    while time.monotonic() < until and not _remount(folder, "ro"):
        time.sleep(0.001)
    time.sleep(max(0.0, until - time.monotonic()))
    _remount(folder, "rw")


def _remount(folder: Path, mode: str) -> bool:
    command = ["mount", "-o", f"remount,{mode}", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


if __name__ == "__main__":
    sys.exit(main())
