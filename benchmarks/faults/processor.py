"""Computation held up by threads, other processes or the interpreter; and none that is."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from faults.loops import fit, loader, network, train

HOGS_PER_CPU = 2
LIVE_OBJECTS = 50_000


def healthy_compute(files: Path, run_dir: Path) -> None:
    """A network that keeps one CPU busy, and a loader that costs nothing."""
    fit(run_dir, loader(60), network(24))


def healthy_light_loader(files: Path, run_dir: Path) -> None:
    """Short steps, workers that are always ahead of them."""
    train(run_dir, loader(80, workers=2))


def too_many_threads(files: Path, run_dir: Path) -> None:
    """Eight threads for each CPU."""
    threads = 8 * len(os.sched_getaffinity(0))
    train(run_dir, loader(60), network(24), threads=threads)


@contextmanager
def hogs(files: Path) -> Iterator[dict[str, str]]:
    """Processes that do nothing, as fast as they can."""
    with ExitStack() as stack:
        for _ in range(HOGS_PER_CPU * len(os.sched_getaffinity(0))):
            hog = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
            stack.callback(hog.wait)
            stack.callback(hog.kill)
        yield {}


def cpu_hog(files: Path, run_dir: Path) -> None:
    """The healthy training, beside `hogs`."""
    train(run_dir, loader(60), network(24))


def frequent_gc(files: Path, run_dir: Path) -> None:
    """Many live objects, and a loop that has all of them looked at in every step.

    By its thresholds alone the collector would not: it leaves old objects in peace until a quarter
    of them is new.
    """
    live = [{"number": number} for number in range(LIVE_OBJECTS)]
    train(run_dir, loader(60), in_forward=lambda step: gc.collect())
    live.clear()


def python_thread(files: Path, run_dir: Path) -> None:
    """A thread that computes in Python beside the healthy training.

    Each operation of torch lets go of the interpreter's lock, and waits up to 5 ms to get it back.
    """
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        train(run_dir, loader(60))
    finally:
        over.set()
        thread.join()
