"""What is told at the end of a run, on standard error: the verdict, and where to look."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from trainobs.core.text import printable
from trainobs.verdict.advice import told
from trainobs.verdict.sentence import sentence
from trainobs.verdict.verdict import Verdict


def tell_end(run_dir: Path, verdict: Verdict) -> None:
    """Three lines, in one write, so that lines of others do not come between.

    Args:
        run_dir: of the run.
        verdict: on the run.
    """
    advice = f"; advice: {told(verdict.advice)}" if verdict.advice else ""
    place = shlex.quote(str(run_dir))
    lines = (
        f"{sentence(verdict)}{advice}",
        f"the run is in {run_dir}",
        f"see `trainobs report {place}`, `tensorboard --logdir {place}`",
    )
    text = "".join(f"trainobs: {printable(line)}\n" for line in lines)
    print(text, end="", file=sys.stderr, flush=True)
