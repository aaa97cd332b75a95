"""What a step of a training does beside its network."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue

import numpy as np
import numpy.typing as npt
import torch

from faults.data import CLASSES, busy, program, sleep
from faults.training import Training

ROW_VALUES = 1024
ROWS_PER_STEP = 16
POLL_S = 0.005


def network_of(training: Training) -> torch.nn.Module:
    """A convolutional network; as it is by default, a step takes some 20 ms on one CPU."""
    width = training.width
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, width, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(width, width, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(8),
        torch.nn.Flatten(),
        torch.nn.Linear(width * 64, CLASSES),
    )


class StepWork:
    """The work of each step, by the place in the loop where it is done."""

    def __init__(self, training: Training, folder: Path) -> None:
        self._training = training
        self._live = [{"number": number} for number in range(training.live_objects)]
        self._table = _table(training, folder) if training.table_mb else None
        self._random = np.random.default_rng(0)
        self._held = threading.Lock()
        self._held.acquire()

    def transfer(self, images: torch.Tensor) -> torch.Tensor:
        """On the way to the device."""
        training = self._training
        if training.copies > 1:
            large = images.repeat(training.copies, 1, 1, 1).to(torch.float64).to(torch.float32)
            images = large[: training.batch]
        busy(training.transfer_cpu_ms)
        return images.to("cpu")

    def forward(self, step: int) -> None:
        """Before the network."""
        training = self._training
        busy(training.step_cpu_ms)
        program(training.step_program_ms)
        if step % training.sleep_every == 0:
            sleep(training.step_sleep_ms)
        for _ in range(round(training.poll_ms / 1e3 / POLL_S)):
            self._held.acquire(timeout=POLL_S)
        if self._table is not None:
            self._table[self._random.integers(0, len(self._table), ROWS_PER_STEP)].sum()
        if training.collect_marked:
            self._collect(step)

    def after(self, step: int) -> None:
        """After the step, in no phase."""
        if not self._training.collect_marked:
            self._collect(step)

    def _collect(self, step: int) -> None:
        if is_due(self._training.collect_every, step):
            gc.collect()


class Log:
    """A callback that prints what it computes."""

    def __init__(self, training: Training, folder: Path) -> None:
        self._cpu_ms, self._sleep_ms = training.log_cpu_ms, training.log_sleep_ms
        self._path = folder / "log.jsonl"

    def write(self, step: int) -> None:
        """Print a line."""
        if self._cpu_ms:
            busy(self._cpu_ms)
            with open(self._path, "a") as file:
                print(json.dumps({"step": step}), file=file)
        sleep(self._sleep_ms)


class Checkpoints:
    """Saves a state every so many steps."""

    def __init__(self, training: Training, folder: Path) -> None:
        self._fsync = training.checkpoint_fsync
        self._path = folder / "checkpoint.pt"
        self._state = torch.rand(training.checkpoint_mb * 250_000)
        self._pool = ThreadPoolExecutor(1) if training.checkpoint == "background" else None
        self._writing: Future[None] | None = None

    def save(self) -> None:
        """Save now; in the background, once what was saved before is written."""
        if not self._pool:
            self._write(self._state)
            return
        self._wait()
        self._writing = self._pool.submit(self._write, self._state.clone())

    def close(self) -> None:
        """Wait for what is being written."""
        self._wait()
        if self._pool:
            self._pool.shutdown()

    def _wait(self) -> None:
        if self._writing:
            self._writing.result()

    def _write(self, state: torch.Tensor) -> None:
        with open(self._path, "wb") as file:
            torch.save(state, file)
            if self._fsync:
                file.flush()
                os.fsync(file.fileno())


def is_due(every: int, step: int) -> bool:
    """Whether what is done every so many steps (0: never) is done after this one."""
    return every > 0 and step % every == every - 1


def _table(training: Training, folder: Path) -> npt.NDArray[np.float32]:
    path = folder / "table.npy"
    shape = ((training.table_mb << 20) // (4 * ROW_VALUES), ROW_VALUES)
    np.lib.format.open_memmap(path, "w+", np.float32, shape).fill(1)
    table: npt.NDArray[np.float32] = np.load(path, mmap_mode="r")
    return table


@contextmanager
def thread_beside(kind: str) -> Iterator[None]:
    """A thread that "computes" in Python, or "polls" a queue; "": none."""
    if not kind:
        yield
        return
    over = threading.Event()
    queue: Queue[None] = Queue()

    def compute() -> None:
        while not over.is_set():
            sum(range(1000))

    def poll() -> None:
        while not over.is_set():
            try:
                queue.get(timeout=POLL_S)
            except Empty:
                continue

    thread = threading.Thread(target={"computes": compute, "polls": poll}[kind])
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
