"""Attach to one training and let go of it, again and again: what is left, in it and in the kernel.

Usage (as root): python -m benchmarks.storms.attaching [--count 1000] [--minutes N]

Each time is a whole `trainobs attach`, with a run log, in one process. Each log must have steps,
held against what the loop wrote down; afterwards nothing may be left: no program, no descriptor, no
mapping, no breakpoint in the training. Prints JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from contextlib import closing, redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests import kernel_state
from tests.attach.target import FETCHES, Target, boundaries, is_patched, steps_of
from trainobs.attach.job import attach
from trainobs.attach.process import find
from trainobs.probes.elf import Library
from trainobs.probes.outside import FUNCTIONS

SECONDS, LOOK_S = 0.1, 900.0
LOOKS = 20
"""How often memory is told of."""


def main() -> None:
    """Attach as often as was asked for."""
    parser = argparse.ArgumentParser(description="Attach to a training again and again.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=1e9, help="end after so many, at the most")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainobs-storm-") as folder:
        target = Target("plain", Path(folder), 24 * 3600)
        try:
            found = _cycles(target, Path(folder), options.count, 60 * options.minutes)
            print(json.dumps(found, indent=2))
        finally:
            target.end()


def _cycles(target: Target, folder: Path, count: int, seconds: float) -> dict[str, Any]:
    programs, until = kernel_state.program_ids(), time.monotonic() + seconds
    memory, runs = [], []
    for number in range(count):
        if time.monotonic() > until:
            break
        runs.append(folder / f"run-{number}")
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
            attach(target.pid(), seconds=SECONDS, look_s=LOOK_S, run_dir=runs[-1])
        if number == 0:
            held = _held()  # by what the first has imported
        if number % max(1, count // LOOKS) == 0:
            memory.append(_memory_mb())
    left = {
        "programs": kernel_state.left_behind(programs),
        "descriptors and mappings, more than after the first": [
            more for more in (now - then for now, then in zip(_held(), held, strict=True)) if more
        ],
        "breakpoints": [name for name in FUNCTIONS.values() if _is_patched(target.pid(), name)],
    }
    target.stop()
    events = target.events()
    truth = np.array([events[index][1] for index in boundaries(events, FETCHES)])
    steps = [_steps(run, truth) for run in runs]
    wrong = [run.name for run, count in zip(runs, steps, strict=True) if not count]
    left["runs whose steps are not the loop's"] = wrong
    return {
        "tried": len(runs),
        "steps": sum(steps),
        "memory_mb": memory,
        "troubles": [f"{what}: {found}" for what, found in left.items() if found],
    }


def _steps(run: Path, truth: npt.NDArray[np.int64]) -> int:
    """Steps of a log; 0 if one of them is not the next of the loop's, which notes its fetches."""
    log = steps_of(run)
    begins = log.start_ns()[log.step() >= 0]
    noted = truth[np.searchsorted(truth, begins[:1]).sum() :][: len(begins)]
    between = np.searchsorted(begins, noted, "right")
    return len(begins) if np.array_equal(between, np.arange(len(begins)) + 1) else 0


def _is_patched(pid: int, function: str) -> bool:
    """Whether a function of torch, in the library that has it, begins with a breakpoint."""
    for mapped in find(pid).libraries.values():
        with closing(Library(mapped.file)) as library:
            if library.offset_of(function) is not None:
                return is_patched(pid, mapped.path, function)
    raise LookupError(function)


def _held() -> tuple[int, int]:
    """Descriptors of this process, and mappings of eBPF, but for what waits to be collected."""
    gc.collect()
    mapped = Path("/proc/self/maps").read_text().count("bpf-map")
    return len(os.listdir("/proc/self/fd")), mapped


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


if __name__ == "__main__":
    sys.exit(main())
