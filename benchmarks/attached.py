#!/usr/bin/env python3
"""What `trainobs attach` costs a training of 20 ms steps.

usage: python benchmarks/attached.py [--bound] [--pairs N] [--json FILE]

Attached and not take turns of some seconds each. Of each turn the median step counts, in CPU time
of the training thread, which other work on the machine changes least; so does the least. Beside it
the time in the programs behind uprobes, by the kernel's own count: without the traps that lead
there.

With --bound it is put together from what noise does not change: how often a step comes by a uprobe,
makes a system call or loses its CPU, times what each of these takes more while attached, which is
the difference of the least of many tight loops of nothing else. Needs root, torch and strace.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
from ruler import interval

STEP_S = 0.02
TURN_S = 3.0
STEPS = 1_000_000

CHUNKS = 40
"""Tight loops of each kind in a turn, of which the least counts."""

ASKED, *UNITS_AT = range(STEPS - 4, STEPS)
"""Where in `times` a turn of tight loops is asked for, and told of, ns of CPU time."""

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
            if times[ASKED]:
                for place, loop in zip(UNITS_AT, UNITS.values(), strict=True):
                    times[place] = min(_timed(loop) for _ in range(CHUNKS))
                times[ASKED] = 0


def _timed(loop: Callable[[], None]) -> int:
    began = time.thread_time_ns()
    loop()
    return time.thread_time_ns() - began


EACH = {"uprobe_ns": 1000, "system_call_ns": 4000, "sleep_ns": 100}
"""What a tight loop does, and how often."""


def _scopes() -> None:
    """Each comes by two uprobes; the name is one that both programs act upon."""
    from torch.profiler import record_function

    for _ in range(EACH["uprobe_ns"] // 2):
        with record_function("Optimizer.step#nothing"):
            pass


def _calls() -> None:
    for _ in range(EACH["system_call_ns"]):
        os.getppid()


def _sleeps() -> None:
    """Each is a system call, leaves the CPU and comes back."""
    for _ in range(EACH["sleep_ns"]):
        time.sleep(1e-6)


UNITS = dict(zip(EACH, (_scopes, _calls, _sleeps), strict=True))


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


def bound(pid: int, times: Ints, turns: int) -> dict[str, object]:
    """What each thing takes more while attached, how often a step does it, and the product."""
    bare, more = [], []
    for _ in range(turns):
        bare.append(_units(times))
        with attached(pid):
            more.append(_units(times))
    took = np.min(more, axis=0) - np.min(bare, axis=0)
    unit = {name: float(ns) / EACH[name] for name, ns in zip(EACH, took, strict=True)}
    often = _hits(pid, times) | _switches_and_calls(pid, times)
    whole = sum(
        unit[name] * often[each]
        for name, each in zip(EACH, ("uprobes", "system_calls", "switches"), strict=True)
    )
    step = {"step_ns": STEP_S * 1e9, "all_ns": whole, "share": whole / (STEP_S * 1e9)}
    return {"turns": turns, "chunks": CHUNKS, **unit, "in_a_step": often, **step}


def _units(times: Ints) -> Ints:
    times[ASKED] = 1
    while times[ASKED]:
        time.sleep(STEP_S)
    return times[UNITS_AT].copy()


def _hits(pid: int, times: Ints) -> dict[str, float]:
    """How often a step comes by a uprobe, by the kernel's count of what runs there."""
    from trainobs.probes.outside import FUNCTIONS
    from trainobs.probes.statistics import ProbeStatistics

    with attached(pid) as descriptors:
        statistics_of = ProbeStatistics({name: descriptors[name] for name in FUNCTIONS})
        runs: list[int] = []

        def wait(seconds: float) -> None:
            for pause in (seconds, 0.0):
                runs.append(sum(statistics_of.run_counts()))
                runs.append(int(times[0]))
                time.sleep(pause)

        statistics_of.share(TURN_S, wait)
    (before, first), (after, last) = runs[:2], runs[2:]
    return {"uprobes": (after - before) / (last - first)}


def _switches_and_calls(pid: int, times: Ints) -> dict[str, float]:
    """Of the training thread, while nothing is attached."""
    first, before = int(times[0]), _switches(pid)
    time.sleep(TURN_S)
    switches = (_switches(pid) - before) / (int(times[0]) - first)
    command = ["strace", "-qq", "-c", "-p", str(pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    first = int(times[0])
    time.sleep(TURN_S)
    tracer.send_signal(signal.SIGINT)
    steps = int(times[0]) - first
    assert tracer.stderr is not None
    total = next(line for line in tracer.stderr if line.rstrip().endswith("total"))
    tracer.wait()
    return {"system_calls": int(total.split()[3]) / steps, "switches": switches}


def _switches(pid: int) -> int:
    """Times that the thread has given its CPU away; those that it was taken away are noise."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("voluntary_ctxt_switches"))


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--bound", action="store_true", help="by counts, not by turns")
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
                find_out = bound if options.bound else measure
                found = find_out(training.pid, times, options.pairs)
            finally:
                training.kill()
    text = json.dumps(found, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
