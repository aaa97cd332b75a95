"""Runs of a loop without a model, as fast as it can be; step n reads 1 + n % 7 times.

usage: loop.py '{"data": FILE, "runs": DIR, "steps": 1000, "times": 10}'
"""

from __future__ import annotations

import json
import os
import sys

import trainobs


def run(data: str, run_dir: str, steps: int) -> None:
    fd = os.open(data, os.O_RDONLY)
    with trainobs.observe(run_dir=run_dir, data_roots=data) as obs:
        for number in obs.loader(range(steps)):
            with obs.step():
                for _ in range(1 + number % 7):
                    os.pread(fd, 1, 0)
    os.close(fd)


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    for time in range(settings["times"]):
        run(settings["data"], f"{settings['runs']}/{time}", settings["steps"])
