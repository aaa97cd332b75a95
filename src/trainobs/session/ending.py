"""What a run tells on standard error: where it goes, what bounded it, and where to look."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainobs.core.text import printable
from trainobs.runlog.schema import RUN_FILE
from trainobs.session.progress import lines_below

if TYPE_CHECKING:
    from trainobs.verdict.verdict import Verdict


def tell(*lines: str) -> None:
    """Lines on standard error, in one write, so that lines of others do not come between.

    They begin below progress bars. Nothing where it is closed, as in a daemon, or takes no more.
    """
    text = "".join(f"trainobs: {printable(line)}\n" for line in lines)
    if sys.stderr is not None:  # which `print` takes for standard output
        with suppress(OSError, ValueError):
            text = "\n" * lines_below(sys.stderr) + text
            print(text, end="", file=sys.stderr, flush=True)


def tell_place(run_dir: Path, asked: Path) -> None:
    """One line: the run goes to `run_dir`, and not where it was to go."""
    tell(f"{asked} is taken; this run goes to {run_dir}")


def tell_no_step(run_dir: Path) -> None:
    """One line, where a run could be written: it has no step, so that there is no verdict on it."""
    if os.path.exists(run_dir / RUN_FILE):
        tell(f"no step was found; the run is in {run_dir}")


def tell_end(run_dir: Path, asked: Path, curves: str, verdict: Verdict) -> None:
    """Three lines; one where no run could be written.

    Args:
        run_dir: of the run.
        asked: where it was to go.
        curves: where TensorBoard finds its curves: not in the run, if a framework writes them.
        verdict: on the run.
    """
    from trainobs.verdict.advice import told
    from trainobs.verdict.sentence import sentence

    advice = f"; advice: {told(verdict.advice)}" if verdict.advice else ""
    lines = [f"{sentence(verdict)}{advice}"]
    if os.path.exists(run_dir / RUN_FILE):
        place = shlex.quote(str(run_dir))
        beside = "" if run_dir == asked else f"; {asked} holds an earlier one"
        lines.append(f"the run is in {run_dir}{beside}")
        lines.append(f"see `trainobs report {place}`, `tensorboard {_board(run_dir, curves)}`")
    tell(*lines)


def _board(run_dir: Path, curves: str) -> str:
    """What TensorBoard has to be told to show the curves, and the run in its tab."""
    both = f"{curves},{run_dir}"
    # One directory has both, or its name means something else in a list: "name:path,...".
    if run_dir.is_relative_to(os.path.abspath(curves)) or ":" in both or both.count(",") > 1:
        return f"--logdir {shlex.quote(curves)}"
    return f"--logdir_spec {shlex.quote(both)}"
