"""What `trainobs top` prints: one line for each training process."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from trainobs.core.text import counted, percent, printable, size

WAITS = ("data", "device", "CPU", "else")
_HEAD = f"{'PID':>8} {'USER':<10} {'STEPS/S':>8}" + "".join(f"{w:>8}" for w in WAITS)
_NONE = "no training process of {} is running: no process has imported torch"

_COMMAND = len(f"{_HEAD} {'READ/S':>10}  ")
"""Where commands begin."""

_PYTHON = re.compile(r"(\S*/)?python[\d.]* (?=\S)")
_FOLDERS = re.compile(r"^\S*/(?=\S)")

_AROUND = 3
"""Lines of a terminal that no row is on: the head, and the one where the cursor stays."""


def render(
    rows: Sequence[Mapping[str, Any]], whose: str, idle_note: str, *, fits: bool = False
) -> str:
    """A table, as wide as the terminal.

    Args:
        rows: of each process `pid`, `user`, `command`, `steps_per_s`, `waits`, `read_bytes_per_s`
            and `note`.
        whose: whose processes these are.
        idle_note: the note of processes that do not train.
        fits: whether it is to be no higher than the terminal, either.
    """
    if not rows:
        return _NONE.format(whose)
    idle = [str(row["pid"]) for row in rows if row["note"] == idle_note]
    width, height = shutil.get_terminal_size((120, 24))
    head = f"{'':>8} {'':<10} {'':>8}  waits for, in percent of the time of its training thread"
    room = width - _COMMAND
    lines = [_line(row, room) for row in rows if row["note"] != idle_note]
    if idle:
        lines.append(f"not seen to train, with torch imported: {', '.join(idle)}")
    most = max(1, height - _AROUND)
    if fits and len(lines) > most:
        more = counted(len(lines) - most + 1, "more line")
        lines[most - 1 :] = [f"{more}: in a higher terminal, or by `--once`"]
    lines[:0] = [head, f"{_HEAD} {'READ/S':>10}  COMMAND"]
    return "\n".join(printable(line)[:width].rstrip() for line in lines)


def _line(row: Mapping[str, Any], room: int) -> str:
    begin = f"{row['pid']:>8} {row['user']:<10.10}"
    command = row["command"]
    if len(command) > room:  # what it runs tells more than where Python is
        command = _FOLDERS.sub("", _PYTHON.sub("", command, count=1))
    if row["note"]:
        return f"{begin} {'-':>8}{row['note']:>43.43}  {command}"
    waits = "".join(f"{_share(row['waits'][name]):>8}" for name in WAITS)
    read = size(row["read_bytes_per_s"])
    return f"{begin} {row['steps_per_s']:>8.1f}{waits} {read:>10}  {command}"


def _share(share: float | None) -> str:
    return "-" if share is None else percent(share)
