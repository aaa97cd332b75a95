#!/usr/bin/env python3
"""What `trainobs attach` costs a training of 20 ms steps.

usage: python benchmarks/attached.py [--bound] [--blocks N] [--json FILE]

Two trainings share a CPU, and their steps take turns. Now one is attached to, now the other, and
now neither, for a second each: the ratio of their CPU times tells what that adds, whatever else
slows the machine. Beside it the time in the programs behind uprobes, by the kernel's own count:
without the traps that lead there.

With --bound it is put together from what noise does not change: how often a step comes by a uprobe,
makes a system call or loses its CPU, times what each of these takes more while attached, which is
the difference of the least of many tight loops of nothing else. Needs root, torch and strace.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from ruler import interval

STEP_S = 0.02
TURN_S = 3.0
TURN_STEPS = 50
STEPS = 1_000_000

CHUNKS = 40
"""Tight loops of each kind in a turn, of which the least counts."""

ASKED, *UNITS_AT = range(STEPS - 4, STEPS)
"""Where in `times` a turn of tight loops is asked for, and told of, ns of CPU time."""

Ints = npt.NDArray[np.int64]


class Training(NamedTuple):
    """A process, and what it writes down: see `train`."""

    pid: int
    times: Ints


Pair = tuple[Training, Training]


def train(file: Path, number: int) -> None:
    """Step for ever; when step n ends, `times[n]` is the CPU time so far, ns; `times[0]` is n.

    Args:
        file: holds `times`.
        number: of the training, of two that share a CPU and take turns.
    """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    times = _times(file)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    loader = DataLoader(TensorDataset(torch.randn(10**6, 64)), 32)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    due = (time.monotonic() // STEP_S + number / 2) * STEP_S
    number = 0
    while True:
        for (batch,) in loader:
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()
            due += STEP_S * max(1, (time.monotonic() - due) // STEP_S + 1)
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
    from trainobs.attach.run import AttachedRun
    from trainobs.probes.shared import SharedProbes
    from trainobs.steps.rule import rule_for

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


def turn(pair: Pair) -> npt.NDArray[np.float64]:
    """CPU time of the median step of both trainings, over the same seconds, in ns."""
    time.sleep(5 * STEP_S)
    first = [int(one.times[0]) for one in pair]
    while any(one.times[0] < begin + TURN_STEPS for one, begin in zip(pair, first, strict=True)):
        time.sleep(STEP_S)
    steps = [slice(begin, int(one.times[0])) for one, begin in zip(pair, first, strict=True)]
    return np.array(
        [np.median(np.diff(one.times[part])) for one, part in zip(pair, steps, strict=True)]
    )


def in_programs(pid: int, times: Ints) -> float:
    """Time in the programs behind uprobes a step, ns; what counting it takes is inside."""
    from trainobs.probes.attached_backend import FUNCTIONS
    from trainobs.probes.statistics import ProbeStatistics

    with attached(pid) as descriptors:
        counts: list[int] = []
        spent = ProbeStatistics({name: descriptors[name] for name in FUNCTIONS}).share(
            TURN_S, lambda seconds: counts.extend((times[0], time.sleep(seconds), times[0])[::2])
        )
    if spent is None:
        raise SystemExit("the kernel does not count the time in programs here")
    return spent * TURN_S * 1e9 / (counts[1] - counts[0])


def measure(pair: Pair, blocks: int, seconds: float) -> dict[str, object]:
    """What a step takes more in a training that is attached to, in ns.

    What slows the machine slows both, so that their ratio counts. A block has a turn in which one
    is attached to, a turn in which the other is, and a turn of neither after letting go of each.
    """
    bare, more, again = [], [], []
    until = time.monotonic() + seconds
    for number in range(blocks):
        if time.monotonic() > until:
            break
        took = {name: _turn(pair, *name) for name in _order(number)}
        ratio = {name: float(np.log(one[0] / one[1])) for name, one in took.items()}
        more.append((ratio[0, True] - ratio[1, True]) / 2)
        again.append((ratio[0, False] - ratio[1, False]) / 2)
        bare += [step for one in (0, 1) for step in took[one, False].tolist()]
    step = statistics.median(bare)
    in_programs_ns = [in_programs(pair[0].pid, pair[0].times) for _ in range(5)]
    return {
        "blocks": len(more),
        "load": os.getloadavg()[0],
        "step_ns": STEP_S * 1e9,
        "cpu_of_a_bare_step_ns": step,
        "more_while_attached_ns": _median(more, step),
        "more_of_nothing_ns": _median(again, step),
        "in_programs_ns": statistics.median(in_programs_ns),
    }


def _order(number: int) -> list[tuple[int, bool]]:
    """Of the turns of a block: which training is attached to, and whether it still is."""
    turns = list(itertools.product((0, 1), (True, False)))
    return turns[number % 4 :] + turns[: number % 4]


def _turn(pair: Pair, which: int, stays: bool) -> npt.NDArray[np.float64]:
    with attached(pair[which].pid):
        if stays:
            return turn(pair)
    return turn(pair)


def _median(shares: list[float], step_ns: float) -> dict[str, object]:
    """Of differences of logarithms, as a part of a step; with the 95 % interval."""
    low, high = interval(shares)
    parts = {"median": statistics.median(shares), "low": low, "high": high}
    return {name: float(np.expm1(share)) * step_ns for name, share in parts.items()}


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
    from trainobs.probes.attached_backend import FUNCTIONS
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
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=1e9, help="of these blocks, at the most")
    parser.add_argument("--bound", action="store_true", help="by counts, not by turns")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.number)
    with ExitStack() as trainings:
        first = trainings.enter_context(training(0))
        if options.bound:
            found = bound(first.pid, first.times, options.blocks)
        else:
            pair = first, trainings.enter_context(training(1))
            found = measure(pair, options.blocks, 60 * options.minutes)
    text = json.dumps(found, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


@contextmanager
def training(number: int) -> Iterator[Training]:
    """A training that steps; killed in the end."""
    with TemporaryDirectory() as place:
        file = Path(place, "times")
        with open(file, "wb") as made:
            made.truncate(8 * STEPS)
        words = [os.path.abspath(__file__), "--train", str(file), "--number", str(number)]
        with subprocess.Popen([sys.executable, *words]) as process:
            try:
                times = _times(file)
                while times[0] < 100:
                    time.sleep(0.1)
                yield Training(process.pid, times)
            finally:
                process.kill()


if __name__ == "__main__":
    main()
