"""What `trainobs report --watch` prints: the brief report, for as long as the run goes on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from trainobs.analysis.live import LiveRun
from trainobs.analysis.summary import Summary
from trainobs.core.text import counted, printable
from trainobs.report import brief
from trainobs.report.rows import fitted

EVERY_S = 2.0
CLEAR = "\x1b[H\x1b[2J"
_BELOW = 2
"""Lines of a terminal below a report: an empty one, and the one where the cursor stays."""


def follow(
    path: Path,
    write: Callable[[str], bool],
    *,
    redraws: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show a run until it has ended, or the reader goes away.

    Args:
        path: as `LiveRun` takes it.
        write: shows a text; False if nobody reads it any more.
        redraws: whether to draw over the old report, as on a terminal; else only what is new is
            shown, one report after another.
        sleep: waits for so many seconds.

    Raises:
        RunLogError: what is there is no run that this version can read.
    """
    run, waiting = LiveRun(path), False
    while True:
        is_new = run.look()
        if run.summary is not None and (is_new or redraws):
            is_newest = _is_in(path, run.summary)
            text = fitted(brief.render(run.summary, time.time_ns(), is_newest=is_newest))
            if redraws and not run.summary["outcome"]:
                text = _top_of(text)
            if not write(f"{CLEAR if redraws else ''}{text}\n") or run.summary["outcome"]:
                return
        elif run.summary is None and not waiting:
            waiting = True
            if not write(f"waiting for a run in {printable(str(path))}; Ctrl-C ends this"):
                return
        sleep(EVERY_S)


def _top_of(text: str) -> str:
    """What the terminal has room for, from the begin on, where the verdict is."""
    lines = text.split("\n")
    most = max(1, shutil.get_terminal_size().lines - _BELOW)
    if len(lines) > most:
        more = counted(len(lines) - most + 1, "more line")
        lines[most - 1 :] = [f"{more}: in a higher terminal, or without `--watch`"]
    return "\n".join(lines)


def _is_in(path: Path, summary: Summary) -> bool:
    return Path(str(summary["run"])) != path
