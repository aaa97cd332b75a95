#!/usr/bin/env python3
"""What `trainobs attach` costs a training of 20 ms steps.

usage: python benchmarks/attached.py [--pairs N] [--json FILE]

Attached and not take turns of some seconds each. Of each turn the median step counts, in CPU time
of the training thread, which other work on the machine changes least; so does the least. Beside it
the time in the programs behind uprobes, by the kernel's own count: without the traps that lead
there. Needs root and torch.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
from ruler import interval

STEP_S = 0.02
TURN_S = 3.0
STEPS = 1_000_000

Ints = npt.NDArray[np.int64]


def train(file: Path) -> None:
    """Step for ever; number n spends `times[n]` of CPU time, in ns, and `times[0]` counts them."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    times = _times(file)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    loader = DataLoader(TensorDataset(torch.randn(10**6, 64)), 32)
    due, number = time.monotonic(), 0
    while True:
        for (batch,) in loader:
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()
            due = max(due + STEP_S, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            number += 1
            times[number] = time.thread_time_ns()
            times[0] = number


def _times(file: Path) -> Ints:
    with open(file, "r+b") as opened:
        return np.frombuffer(mmap.mmap(opened.fileno(), 8 * STEPS), np.int64)


@contextmanager
def attached(pid: int) -> Iterator[dict[str, int]]:
    """Steps are seen; the descriptors of the programs that run."""
    from trainobs.attach.process import find
    from trainobs.attach.rule import rule_for
    from trainobs.attach.run import AttachedRun
    from trainobs.probes.shared import SharedProbes

    probes = SharedProbes()
    run = AttachedRun(find(pid), probes, 0)
    try:
        while not (rule := rule_for(run.clock.look())):
            time.sleep(STEP_S)
        run.start(rule, times_fetches=run.times_fetches(rule))
        yield run.program_fds()
    finally:
        run.end("not recorded")
        probes.stop()


def turn(times: Ints) -> tuple[float, float]:
    """CPU time of the median step of a turn, and of the least, in ns."""
    time.sleep(5 * STEP_S)
    first = int(times[0])
    time.sleep(TURN_S)
    took = np.diff(times[first : int(times[0])])
    return float(np.median(took)), float(took.min())


def in_programs(pid: int, times: Ints) -> float:
    """Time in the programs behind uprobes a step, ns; what counting it takes is inside."""
    from trainobs.probes.outside import FUNCTIONS
    from trainobs.probes.statistics import ProbeStatistics

    with attached(pid) as descriptors:
        counts: list[int] = []
        spent = ProbeStatistics({name: descriptors[name] for name in FUNCTIONS}).share(
            TURN_S, lambda seconds: counts.extend((times[0], time.sleep(seconds), times[0])[::2])
        )
    if spent is None:
        raise SystemExit("the kernel does not count the time in programs here")
    return spent * TURN_S * 1e9 / (counts[1] - counts[0])


def measure(pid: int, times: Ints, pairs: int) -> dict[str, object]:
    """All numbers, in ns of a step."""
    bare, more, least = [], [], []
    for number in range(pairs):
        before = turn(times) if number % 2 else None
        with attached(pid):
            observed = turn(times)
        without = before or turn(times)
        bare.append(without[0])
        more.append(observed[0] - without[0])
        least.append(observed[1] - without[1])
    return {
        "pairs": pairs,
        "step_ns": STEP_S * 1e9,
        "cpu_of_a_bare_step_ns": statistics.median(bare),
        "more_in_the_median_step_ns": statistics.median(more),
        "interval_of_that_median_ns": interval(more),
        "more_in_the_least_step_ns": statistics.median(least),
        "in_programs_ns": statistics.median(in_programs(pid, times) for _ in range(5)),
    }


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train)
    with TemporaryDirectory() as place:
        file = Path(place, "times")
        with open(file, "wb") as made:
            made.truncate(8 * STEPS)
        words = [sys.executable, os.path.abspath(__file__), "--train", str(file)]
        with subprocess.Popen(words) as training:
            try:
                times = _times(file)
                while times[0] < 100:
                    time.sleep(0.1)
                found = measure(training.pid, times, options.pairs)
            finally:
                training.kill()
    text = json.dumps(found, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
