"""What is told at the end of a run, on standard error: the verdict, and where to look."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from trainobs.core.records import RunInfo, StepTable
from trainobs.core.sink import Sink
from trainobs.core.text import printable
from trainobs.verdict.advice import told
from trainobs.verdict.record import FirstSteps, Record, columns_of
from trainobs.verdict.rules import judge
from trainobs.verdict.sentence import sentence
from trainobs.verdict.verdict import facts_of


class EndingSink(Sink):
    """Three lines at the end.

    Args:
        run_dir: of the run.
    """

    name = "last lines"

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._record = Record()
        self._first = FirstSteps()
        self._info: RunInfo | None = None

    def begin(self, info: RunInfo) -> None:
        """Keep what is known of the run."""
        self._info = info

    def write(self, batch: StepTable) -> None:
        """Take steps."""
        usual = self._first.without(batch)
        self._record.add(columns_of(usual), usual.epoch, usual.step)

    def end(self, summary: dict[str, object]) -> None:
        """Say how it was, in one write, so that lines of others do not come between."""
        if self._first.seen:
            text = "".join(f"trainobs: {printable(line)}\n" for line in self._lines())
            print(text, end="", file=sys.stderr, flush=True)

    def _lines(self) -> Iterator[str]:
        assert self._info is not None, "begin comes first"
        verdict = judge(self._record, facts_of(self._info))
        advice = f"; advice: {told(verdict.advice)}" if verdict.advice else ""
        yield f"{sentence(verdict)}{advice}"
        yield f"the run is in {self._run_dir}"
        yield f"see `trainobs report {self._run_dir}`, `tensorboard --logdir {self._run_dir}`"
