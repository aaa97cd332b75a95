"""A process that trains and knows nothing of us, and what it should have been seen to do."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests import warm
from trainobs.probes.elf import Library
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog

ROOT = Path(__file__).parents[2]
FILE_BYTES = 8192
"""As in loop_parts.py."""

LOOPS = "tests.attach.loops"
THINGS = "tests.attach.things"
"""Those of this one have no torch."""
PATIENCE_S = 300.0

SETTLED_S = 2.0
"""What a framework does before its first step, and a compiler does not come to an end of."""

NEAR_NS = 50_000_000
"""How far the begin of a step may lie from what the loop wrote down of it."""


Event = tuple[str, int, int]
"""What, when in ns of CLOCK_MONOTONIC, and bytes."""


class Target:
    """A loop of `loops.py` in a process of its own.

    Args:
        kind: which loop.
        place: a directory for it.
        seconds: how long it trains.
        ranks: processes that torchrun starts; 1: without it.
        module: which module has it.
    """

    def __init__(
        self, kind: str, place: Path, seconds: float, ranks: int = 1, module: str = LOOPS
    ) -> None:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        words = [*(launcher if ranks > 1 else []), "-m", module, kind, str(place), str(seconds)]
        self.place = place
        popen = subprocess.Popen if module == THINGS else warm.Popen
        with open(place / "output", "wb") as output:
            self.process = popen([sys.executable, *words], stdout=output, stderr=output, cwd=ROOT)

    def pid(self, rank: int = 0) -> int:
        """Of the process that trains, once it begins."""
        file = self.place / f"pid-{rank}"
        deadline = time.monotonic() + PATIENCE_S
        while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
            assert self.process.poll() is None, self.output()
            time.sleep(0.05)
        return int(file.read_text())

    def settle(self) -> None:
        """Wait until its loop goes on and on, but no longer than `SETTLED_S`."""
        deadline = time.monotonic() + SETTLED_S
        while not (self.place / "settled").exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    def output(self) -> str:
        """What it printed."""
        return (self.place / "output").read_text(errors="replace")

    def events(self, rank: int = 0) -> list[Event]:
        """What it wrote down; waits for its end."""
        assert self.process.wait(PATIENCE_S) == 0, self.output()
        return [tuple(one) for one in json.loads((self.place / f"truth-{rank}.json").read_text())]

    def stop(self) -> None:
        """Have it end in an orderly way."""
        (self.place / "stop").touch()

    def end(self) -> None:
        """Kill it, if it is still there; its ranks, if it has any, find that they are to stop."""
        self.stop()
        self.process.kill()
        self.process.wait()


def attached(
    pid: int, run_dir: Path, *words: str, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run `trainobs attach`, maybe by a command that runs another one, such as `unshare`."""
    command = [sys.executable, "-m", "trainobs", "attach", str(pid), "--run-dir", str(run_dir)]
    return subprocess.run(
        [*before, *command, *words], capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT
    )


def beginning(pid: int, words: list[str], before: Sequence[str] = ()) -> subprocess.Popen[str]:
    """`trainobs attach` that goes on, maybe by another command; returns once it is attached.

    Signals end it as usual, also where the tests run behind nohup.
    """
    reset = ["env", "--default-signal=HUP,INT"]
    command = [*reset, *before, sys.executable, "-m", "trainobs", "attach", str(pid), *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stderr is not None
    assert "attached to process" in process.stderr.readline()
    return process


@dataclass(frozen=True)
class StepRule:
    """When a step begins by the truth, and the words by which `trainobs attach` says so.

    Attributes:
        opens: what the loop wrote down.
        needs: what came in the step before; None: nothing.
        told: the words.
        is_first: whether the loop wrote it down before the step began, and not after.
    """

    opens: str
    needs: str | None
    told: str
    is_first: bool = False


FETCHES = StepRule("get", "opt", "first fetch of a batch after an optimizer has stepped")
ASKED = StepRule("ask", "opt", FETCHES.told, is_first=True)
FETCHES_AND_PASSES = StepRule("get", "back", "first fetch of a batch after a backward pass")
OPTIMIZERS = StepRule("opt", "back", "first step of an optimizer after a backward pass")
STEPS = StepRule("opt", None, "a step begins with each step of an optimizer")
PASSES = StepRule("back", None, "each backward pass is taken for a step")


def boundaries(events: list[Event], rule: StepRule) -> list[int]:
    """Indices of the events that begin a step."""
    found, came = [], False
    for index, (what, _, _) in enumerate(events):
        if what == rule.opens and (came or rule.needs is None):
            found.append(index)
            came = False
        came |= what == rule.needs
    return found


def steps_of(run_dir: Path, rank: int = 0) -> RankLog:
    """A rank of the run log."""
    return RunLog.open(run_dir).ranks[rank]


def check_steps(log: RankLog, events: list[Event], rule: StepRule) -> slice:
    """Hold each step of a run log against the truth; the steps of the truth that it is of."""
    own = log.step() >= 0
    begins = log.start_ns()[own]
    assert len(begins), f"no step, of {len(events)} events; all: {log.step().tolist()}"
    assert log.step()[own].tolist() == list(range(len(begins)))
    truth = np.array([events[index][1] for index in boundaries(events, rule)])
    first = int(np.searchsorted(truth, begins[0])) - rule.is_first
    assert first >= 0
    late = truth[first : first + len(begins)] - begins
    assert len(late) == len(begins)
    late = -late if rule.is_first else late
    assert (late >= 0).all(), late.min()
    assert (late < NEAR_NS).mean() > 0.98, np.sort(late)[-5:]  # it may lose its CPU in between
    return slice(first, first + len(begins))


def bytes_by_step(events: list[Event], rule: StepRule) -> list[int]:
    """Bytes that the data set read in each step of the truth."""
    edges = [*boundaries(events, rule), len(events)]
    return [
        sum(count for what, _, count in events[a:b] if what == "get")
        for a, b in zip(edges, edges[1:], strict=False)
    ]


def is_patched(pid: int, path: str, function: str) -> bool:
    """Whether the code of a process has a breakpoint at the begin of a function of a library."""
    library = Library(path)
    place = library.offset_of(function)
    library.close()
    assert place is not None
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    for address, _, offset, *_, name in (line.split() for line in lines):
        begin, end = (int(number, 16) for number in address.split("-"))
        inside = place - int(offset, 16)
        if name == path and 0 <= inside < end - begin:
            with open(f"/proc/{pid}/mem", "rb") as memory, open(path, "rb") as file:
                memory.seek(begin + inside)
                file.seek(place)
                return memory.read(4) != file.read(4)
    raise AssertionError("no such mapping")
