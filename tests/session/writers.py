"""Finding writer processes of this machine."""

from __future__ import annotations

import os
from pathlib import Path

from trainobs.session.writer_main import NAME


def writers() -> list[int]:
    """Pids of all that run."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _is_one(entry)]


def writer_of(training: int) -> int | None:
    """The pid of the writer process of a training, if it has one."""
    return next((pid for pid in writers() if training in trainings_of(pid)), None)


def trainings_of(writer: int) -> list[int]:
    """The trainings whose end it watches: one."""
    found = []
    for info in Path(f"/proc/{writer}/fdinfo").glob("*"):
        try:
            lines = info.read_text().splitlines()
        except OSError:
            continue
        found += [int(line.split()[1]) for line in lines if line.startswith("Pid:")]
    return found


def _is_one(entry: str) -> bool:
    try:
        return Path(f"/proc/{entry}/comm").read_text().strip() == NAME
    except OSError:
        return False
