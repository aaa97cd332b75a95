"""Trainings in processes of their own, and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0


@contextmanager
def training(directory: Path, *words: str, ranks: int = 1) -> Iterator[subprocess.Popen[str]]:
    """A `training.py` that is going on, in a session of its own; nothing of it is left afterwards.

    Its lines are on `stdout`; what it said to standard error is in the file `errors`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    module = ["-m", "benchmarks.storms.training", str(directory), *words]
    with (directory / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, *(launcher if ranks > 1 else []), *module],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def stepping(directory: Path, *words: str) -> subprocess.Popen[str]:
    """A `stepping.py` that has been started; its run log is to be `run` in a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.storms.stepping", str(directory / "run"), *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process: subprocess.Popen[str], step: int) -> None:
    """Read the lines of a training until a step has ended.

    Raises:
        RuntimeError: it ended before.
    """
    assert process.stdout is not None
    for line in process.stdout:
        if line == f"step {step}\n":
            return
    raise RuntimeError(f"the training ended before step {step}")


def train(directory: Path, *words: str, ranks: int = 1, end_after: int | None = None) -> str:
    """Train to the end, or kill it after a step; what it printed.

    Raises:
        RuntimeError: it failed.
    """
    with training(directory, *words, ranks=ranks) as process:
        if end_after is not None:
            wait_for(process, end_after)
            return ""
        out, _ = process.communicate(timeout=PATIENCE_S)
    if process.returncode:
        raise RuntimeError((directory / "errors").read_text()[-4000:])
    return out
