"""Attach to trainings and come apart again, in every way: what is left, in them and in the kernel.

Usage (as root):
    python -m benchmarks.storms.attaching [--count 1000] [--seed N] [--minutes N] [--one]

Each time is a whole `trainobs attach` with a run log, which ends in one of `WAYS`, at a random
moment. After each nothing may be left: no program, no descriptor, no mapping; in a training that
lives on no breakpoint, and no descriptor, thread or mapping that it had not after the first time.
The steps of all logs are held against what the loops wrote down, but for those of a loop that was
killed. A `trainobs top` beside it has breakpoints of its own in the same trainings, and is to end
before. With `--one` all of it happens to one training, which is killed in none of these ways.
Prints JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, redirect_stderr, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.storms.processes import PATIENCE_S, ROOT
from tests import kernel_state, warm
from tests.attach.target import FETCHES, Target, boundaries, is_patched
from trainobs.attach.job import attach
from trainobs.attach.process import find
from trainobs.core.errors import AttachError, RunLogError
from trainobs.probes.attached_backend import FUNCTIONS
from trainobs.probes.elf import Library
from trainobs.runlog.reader import RunLog

LET_GO, TRAINING_ENDS, TRAINING_KILLED = "let go", "training ends", "training killed"
OBSERVER_ENDS, OBSERVER_KILLED = "observer ends", "observer killed"
WAYS = {LET_GO: 6, TRAINING_ENDS: 1, TRAINING_KILLED: 1, OBSERVER_ENDS: 1, OBSERVER_KILLED: 1}
"""How it ends -> how often of ten times. An observer that ends or is killed by a signal is a
process of its own; the others are this one."""

LIVES_ON = (LET_GO, OBSERVER_ENDS, OBSERVER_KILLED)

SECONDS, LOOK_S = 0.1, 900.0
MOMENTS_S = 1.5
"""What ends in an instant ends within so long."""

LOOKS = 20
"""How often memory is told of."""


@dataclass
class Training:
    """A loop, and the runs that observed it."""

    target: Target
    runs: dict[Path, str] = field(default_factory=dict)  # each with its way to end
    has: Counter[str] | None = None  # after the first of them


class Storm:
    """One training after the other, and observers that come and go.

    Args:
        folder: for all of it.
        draw: ways and moments.
        chances: how often of ten times it ends in which way.
    """

    def __init__(self, folder: Path, draw: random.Random, chances: Mapping[str, int]) -> None:
        self._folder, self._draw, self._chances = folder, draw, chances
        self._programs = kernel_state.program_ids()
        self._training: Training | None = None
        self._held: tuple[int, int] | None = None
        self.ways: Counter[str] = Counter()
        self.refused = self.steps = 0
        self.troubles: list[str] = []

    def once(self) -> None:
        """Attach, end it, and look what is left."""
        number = self.ways.total()
        training = self._training = self._training or self._begin(number)
        ways, chances = list(self._chances), list(self._chances.values())
        way = self._draw.choices(ways, chances)[0] if number else LET_GO
        run = self._folder / f"run-{number}"
        training.runs[run] = way
        if way in (OBSERVER_ENDS, OBSERVER_KILLED):
            self._in_a_process(training, way, run)
        else:
            self._in_this_process(training, way, run)
        self.ways[way] += 1
        found = [f"run {number}, {way}: {what}" for what in self._left(training)]
        print(*found, sep="\n", end="\n" if found else "", file=sys.stderr, flush=True)
        self.troubles += found

    def end(self) -> None:
        """End the training, if there is one, and check what was seen of it."""
        training, self._training = self._training, None
        if training:
            training.target.stop()
            self._check(training)
            training.target.end()

    def _begin(self, number: int) -> Training:
        place = self._folder / f"training-{number}"
        place.mkdir()
        training = Training(Target("plain", place, 24 * 3600))
        training.target.pid()
        return training

    def _in_this_process(self, training: Training, way: str, run: Path) -> None:
        """The training may be dead before it was seen to step."""
        target = training.target
        if way == LET_GO:
            self._attach(target, way, run, SECONDS)
            return
        end = target.stop if way == TRAINING_ENDS else target.process.kill
        timer = Timer(self._draw.uniform(0, MOMENTS_S), end)
        timer.start()
        self._attach(target, way, run, None)
        timer.join()
        if way == TRAINING_ENDS:
            self.end()
        else:
            target.process.wait()
            self._training = None

    def _attach(self, target: Target, way: str, run: Path, seconds: float | None) -> None:
        try:
            with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
                attach(target.pid(), seconds=seconds, look_s=LOOK_S, run_dir=run)
        except AttachError as error:
            self._refused(run, way, error)

    def _refused(self, run: Path, way: str, error: AttachError) -> None:
        self.refused += 1
        if way == LET_GO or run.exists():
            self.troubles.append(f"{run.name}, {way}: {error}")

    def _in_a_process(self, training: Training, way: str, run: Path) -> None:
        """Half of them are ended after they have attached, the others perhaps before."""
        command = [sys.executable, "-m", "trainobs", "attach", str(training.target.pid())]
        observer = warm.Popen(
            [*command, "--look", str(LOOK_S), "--run-dir", str(run)],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert observer.stderr is not None
        if way == OBSERVER_ENDS or self._draw.random() < 0.5:
            observer.stderr.readline()
        time.sleep(self._draw.uniform(0, MOMENTS_S))
        observer.send_signal(signal.SIGTERM if way == OBSERVER_ENDS else signal.SIGKILL)
        _, told = observer.communicate(timeout=PATIENCE_S)
        if way == OBSERVER_ENDS and observer.returncode:
            self.troubles.append(f"{run.name}, {way}: {told}")

    def _left(self, training: Training) -> Iterator[str]:
        if programs := kernel_state.left_behind(self._programs):
            yield f"programs {programs}"
        held = _held()
        self._held = self._held or held  # by what the first time has imported
        if held != self._held:
            yield f"descriptors and mappings {held}, after the first time {self._held}"
        if training is self._training:
            pid = training.target.pid()
            yield from (f"breakpoint {name}" for name in FUNCTIONS.values() if _stops(pid, name))
            has = _has(pid) & _has(pid)  # its loop opens files and closes them
            training.has = training.has or has
            yield from (f"{name} in the training" for name in has - training.has)

    def _check(self, training: Training) -> None:
        events = training.target.events()
        truth = np.array([events[index][1] for index in boundaries(events, FETCHES)])
        for run, way in training.runs.items():
            begins = _begins(run)
            self.steps += len(begins)
            if not _are(begins, truth) or (way == LET_GO and not len(begins)):
                told = f"its {len(begins)} steps are not the loop's"
                self.troubles.append(f"{run.name}, {way}: {told}")


def main() -> None:
    """Attach as often as was asked for."""
    parser = argparse.ArgumentParser(description="Attach to trainings again and again.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1e9, help="end after so many, at the most")
    parser.add_argument("--one", action="store_true", help="training for all of it")
    options = parser.parse_args()
    chances = {way: WAYS[way] for way in (LIVES_ON if options.one else WAYS)}
    until = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="trainobs-storm-") as folder:
        storm, memory = Storm(Path(folder), random.Random(options.seed), chances), []
        try:
            for number in range(options.count):
                if time.monotonic() > until:
                    break
                storm.once()
                if number % max(1, options.count // LOOKS) == 0:
                    memory.append(_memory_mb())
        finally:
            storm.end()
    print(json.dumps(_told(storm) | {"memory_mb": memory}, indent=2))


def _told(storm: Storm) -> dict[str, Any]:
    return {
        "tried": storm.ways.total(),
        "ways": dict(storm.ways.most_common()),
        "dead before a step was seen": storm.refused,
        "steps": storm.steps,
        "troubles": storm.troubles,
    }


def _begins(run: Path) -> npt.NDArray[np.int64]:
    """Of its steps; a killed observer has no log, or one without them."""
    with suppress(RunLogError):
        log = RunLog.open(run).ranks.get(0)
        if log:
            return log.start_ns()[log.step() >= 0]
    return np.zeros(0, np.int64)


def _are(begins: npt.NDArray[np.int64], truth: npt.NDArray[np.int64]) -> bool:
    """Whether each step is the next of the loop's, which notes its fetches."""
    noted = truth[np.searchsorted(truth, begins[:1]).sum() :][: len(begins)]
    between = np.searchsorted(begins, noted, "right")
    return np.array_equal(between, np.arange(len(begins)) + 1)


def _stops(pid: int, function: str) -> bool:
    """Whether a function of torch, in the library that has it, begins with a breakpoint."""
    return is_patched(pid, _library(pid, function), function)


_libraries: dict[str, str] = {}


def _library(pid: int, function: str) -> str:
    """Which of the libraries of torch has it, in any training."""
    for mapped in find(pid).libraries.values() if function not in _libraries else ():
        with closing(Library(mapped.file)) as library:
            if library.offset_of(function) is not None:
                _libraries[function] = mapped.path
    return _libraries[function]


def _held() -> tuple[int, int]:
    """Descriptors of this process, and mappings of eBPF, but for what waits to be collected."""
    gc.collect()
    mapped = Path("/proc/self/maps").read_text().count("bpf-map")
    return len(os.listdir("/proc/self/fd")), mapped


def _has(pid: int) -> Counter[str]:
    """Descriptors, threads and mapped files of a process, by name."""
    place = Path(f"/proc/{pid}")
    files = filter(None, (_target_of(one) for one in (place / "fd").iterdir()))
    maps = (line.split(maxsplit=5) for line in (place / "maps").read_text().splitlines())
    names = {words[5] for words in maps if len(words) > 5}
    threads = ("thread" for _ in (place / "task").iterdir())
    return Counter([*files, *names, *threads])


def _target_of(link: Path) -> str:
    with suppress(FileNotFoundError):
        return os.readlink(link)
    return ""  # closed meanwhile


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


if __name__ == "__main__":
    sys.exit(main())
