"""What is told at the end of a run, on standard error: the verdict, and where to look."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from trainobs.core.sink import Sink
from trainobs.core.text import printable
from trainobs.tensorboard.sink import TensorBoardSink
from trainobs.verdict.advice import told
from trainobs.verdict.sentence import sentence


class EndingSink(Sink):
    """Three lines at the end, of a run that had steps.

    Args:
        run_dir: of the run.
        tensorboard: comes before this one, and has the verdict.
    """

    name = "last lines"

    def __init__(self, run_dir: Path, tensorboard: TensorBoardSink) -> None:
        self._run_dir = run_dir
        self._tensorboard = tensorboard

    def end(self, summary: dict[str, object]) -> None:
        """Say how it was, in one write, so that lines of others do not come between."""
        text = "".join(f"trainobs: {printable(line)}\n" for line in self._lines())
        print(text, end="", file=sys.stderr, flush=True)

    def _lines(self) -> Iterator[str]:
        verdict = self._tensorboard.verdict
        if verdict is not None:
            advice = f"; advice: {told(verdict.advice)}" if verdict.advice else ""
            yield f"{sentence(verdict)}{advice}"
            yield f"the run is in {self._run_dir}"
            yield f"see `trainobs report {self._run_dir}`, `tensorboard --logdir {self._run_dir}`"
