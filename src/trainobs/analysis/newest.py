"""Which run is shown or compared, where a path stands for several; and what to say of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainobs.runlog.reader import find_run, newest_for, not_seen, shut_below
from trainobs.runlog.schema import RUN_FILE


def newest_run(run: Path) -> tuple[Path, list[str]]:
    """The newest of the runs that were to go to a directory; says so if that is not its own."""
    newest, told = newest_for(run), _shut(run)
    if newest != run:
        line = f"the newest run for {run} is {newest}"
        if (run / RUN_FILE).exists():  # else it was killed as it began: there is nothing to see
            line += f"; to see {run} itself, give {run / RUN_FILE}"
        told.append(line)
    return newest, told


def newer_ones(compared: Sequence[Path]) -> list[str]:
    """That runs are compared as they are named, where a newer one lies beside one of them."""
    told = []
    named = {run.absolute() for run in compared}
    for run in dict.fromkeys(compared):
        newest = newest_for(run)
        told += _shut(run)
        if newest.absolute() not in named:
            told.append(f"{run} itself is compared; the newest run for it is {newest}")
    return told


def _shut(runs: Path) -> list[str]:
    """What is not looked through for the newest run, as of another user."""
    with suppress(OSError):  # who opens it will meet the same
        if (shut := not_seen(shut_below(runs))) and find_run(runs):
            return [f"{shut}: newer runs in there are not seen"]
    return []
