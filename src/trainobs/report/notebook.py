"""Runs in notebooks: the page, as what a cell shows."""

from __future__ import annotations

import html
import os
from pathlib import Path

from trainobs.analysis.loaded import LoadedRun
from trainobs.analysis.view import RunView
from trainobs.core.errors import RunLogError, TrainobsError
from trainobs.core.errors import shown as shown_value
from trainobs.report.html import page

BYTES = 1_000_000
"""Of the pieces of a run, at most: a notebook keeps what its cells show."""

_FRAME = '<iframe sandbox="allow-scripts" style="width:100%;height:900px;border:0" srcdoc="{}">'


class ShownRun(LoadedRun):
    """A run whose page a notebook shows, and whose tables a script reads."""

    def _repr_html_(self) -> str:
        """The page, in a frame of its own."""
        return shown(self.run_dir, self._rank)


def load_run(run_dir: str | os.PathLike[str], rank: int | None = None) -> ShownRun:
    """Read a run, also one that goes on: then it is as it was when each part was asked for.

    Args:
        run_dir: a run directory, taken as it is (`trainobs report` takes the newest of it and of
            those beside it); or one that holds runs: the newest. `~` is the user's home.
        rank: the one that the page, `summary` and `verdict` are about; None: the lowest.

    Raises:
        RunLogError: there is no run to read, or no such rank.
    """
    try:
        path = Path(run_dir).expanduser()
    except (TypeError, RuntimeError) as error:  # RuntimeError: nobody knows that home
        raise _no_path(run_dir) from error
    if not os.fspath(run_dir):  # `Path("")` is the current directory
        raise _no_path(run_dir)
    return ShownRun(path, rank)


def _no_path(given: object) -> RunLogError:
    return RunLogError(
        failed="There is no run to read.",
        found=f"{shown_value(given)}, where a path was expected",
        do="give a run directory; where TRAINOBS=off turns observing off there is none",
    )


def shown(run_dir: Path, rank: int | None = None) -> str:
    """The page of a run as far as it is written, or why it cannot be shown."""
    try:
        text = page(RunView.open(run_dir, rank), BYTES)
    except TrainobsError as error:
        return f"<pre>{html.escape(str(error))}</pre>"
    return _FRAME.format(html.escape(text)) + "</iframe>"
