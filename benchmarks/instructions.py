"""Instructions a step, counted by valgrind: `python benchmarks/instructions.py CASE STEPS`.

The one number here that other work on the machine does not move: two runs differ by less than a
thousandth. A case runs twice, with so many steps and with none, and the difference is divided. The
kernel is not in it, and its rows are arrays that this process fills.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from trainobs.core import abi
from trainobs.core.cells import WORDS
from trainobs.core.records import RunInfo
from trainobs.session.observer import DELIVERED_STEPS, FULL
from trainobs.steps.clock import StepClock
from trainobs.steps.closed_step import packed
from trainobs.steps.collector import Collector
from trainobs.steps.ledger import Ledger

COLLECTED, DELIVERED = FULL, DELIVERED_STEPS
"""Steps that are copied at once, and of a delivery, which at 2 ms a step comes with a flush."""

USED = np.flatnonzero(np.arange(WORDS) // 4 % 41 == 0)
"""Numbers of a row that a busy step changes: the four of each of 26 cells, a hundred."""


class Loop:
    """Steps of 2 ms with three phases and one batch each, by a clock that is told the time."""

    def __init__(self) -> None:
        self._now_ns = 10**9
        self.rows = np.zeros((abi.RING, WORDS), np.uint64)
        self.batches = np.zeros(abi.BATCHES, abi.BATCH)
        kernel: Any = SimpleNamespace(
            rows=self.rows.view(abi.CELL).reshape(abi.RING, *abi.CELLS_SHAPE),
            touched=np.isin(np.arange(WORDS // 4), USED // 4).astype(np.uint8),
            latency=np.zeros((abi.RING, abi.BUCKETS), np.uint64),
            batches=self.batches,
            gone_since_ns=lambda: None,
        )
        self.clock = StepClock([0], now=self._tick)
        self.clock.measured.update(phase.value for phase in abi.Phase)
        self.ledger = Ledger(kernel, timed=True, receives=True)
        self.ledger.watched = True
        self.ledger.follow(0)
        later = 10**9  # so that every step is settled
        self.collector = Collector(
            self.clock, kernel, ledger=self.ledger, now=lambda: self._now_ns + later
        )

    def _tick(self) -> int:
        self._now_ns += 200_000
        return self._now_ns

    def mark(self) -> None:
        """What the training thread does in a step."""
        clock = self.clock
        clock.begin_fetch()
        clock.end_fetch()
        clock.begin_batch()
        for phase in (3, 4, 5):
            clock.enter(phase)
            clock.leave()
        clock.end_step()

    def step(self, number: int) -> None:
        """The same, and what the kernel and the loader tell of it."""
        serial, begin_ns = self.clock.serial, self._now_ns
        self.mark()
        self.rows[serial % abi.RING, USED] += np.uint64(7)
        entry = self.batches[number % abi.BATCHES]
        entry["worker"], entry["number"] = number % 2, number // 2
        entry["begin_ns"], entry["end_ns"] = begin_ns - 900_000, begin_ns
        entry["ordinal"] = number + 1
        key = (0, 0, number % 2, number // 2)
        fetch = serial, *key, begin_ns, begin_ns + 200_000, True, True
        self.ledger.fetched(bytearray(packed(fetch)))


def marks(steps: int) -> None:
    """The training thread's part."""
    loop = Loop()
    for _ in range(steps):
        loop.mark()
        loop.clock.closed.clear()


def kernel_alone(steps: int) -> None:
    """What `observer` does beside the observer's part: to be taken off."""
    loop = Loop()
    for number in range(steps):
        loop.step(number)
        loop.clock.closed.clear()


def observer(steps: int) -> None:
    """The observer's part: from the ring to the files."""
    from trainobs.runlog.writer import RunLogSink
    from trainobs.tensorboard.event_file import EventFile
    from trainobs.tensorboard.sink import TensorBoardSink

    loop = Loop()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        sinks = [RunLogSink(run), TensorBoardSink(EventFile(run / "tensorboard"), 50)]
        for sink in sinks:
            sink.begin(RunInfo("ebpf", clock={"monotonic_ns": 0, "wall_ns": 0}))
        for number in range(steps + DELIVERED):  # one delivery more: it imports what it takes
            loop.step(number)
            if number % COLLECTED == COLLECTED - 1:
                loop.collector.collect()
            if number % DELIVERED == DELIVERED - 1:
                table = loop.collector.table()
                for sink in sinks:
                    sink.write(table)
                    sink.flush()


CASES = {"marks": marks, "kernel_alone": kernel_alone, "observer": observer}


def measure(*, quick: bool) -> dict[str, Any]:
    """Instructions a step of the training thread, and of the observer."""
    if shutil.which("valgrind") is None:
        return {"not_counted": "no valgrind"}
    steps = DELIVERED * (1 if quick else 3)
    for name in CASES:  # compiles modules that no process has imported so far
        subprocess.run(_command(name, 0), check=True, env=_environment())
    found = {name: (_count(name, steps) - _count(name, 0)) / steps for name in CASES}
    return {
        "training_thread": round(found["marks"]),
        "observer_thread": round(found["observer"] - found["kernel_alone"]),
    }


def _count(case: str, steps: int) -> int:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += _command(case, steps)
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=_environment())
    counted = re.search(r"Collected : (\d+)", done.stderr)
    assert counted, done.stderr
    return int(counted[1])


def _command(case: str, steps: int) -> list[str]:
    return [sys.executable, __file__, case, str(steps)]


def _environment() -> dict[str, str]:
    """Without what would make each process compile its modules."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


if __name__ == "__main__":
    CASES[sys.argv[1]](int(sys.argv[2]))
