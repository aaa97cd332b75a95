"""What `trainobs top` prints: one line for each training process."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from trainobs.core.text import percent, printable, size

WAITS = ("data", "device", "CPU", "else")
_HEAD = f"{'PID':>8} {'USER':<10} {'STEPS/S':>8}" + "".join(f"{w:>8}" for w in WAITS)
_NONE = "no training process of {} is running: no process has imported torch"


def render(rows: Sequence[Mapping[str, Any]], whose: str, idle_note: str) -> str:
    """A table, as wide as the terminal.

    Args:
        rows: of each process `pid`, `user`, `command`, `steps_per_s`, `waits`, `read_bytes_per_s`
            and `note`.
        whose: whose processes these are.
        idle_note: the note of processes that do not train.
    """
    if not rows:
        return _NONE.format(whose)
    idle = [str(row["pid"]) for row in rows if row["note"] == idle_note]
    width = shutil.get_terminal_size((120, 24)).columns
    head = f"{'':>8} {'':<10} {'':>8}  waits for, in percent of the time of its training thread"
    lines = [head, f"{_HEAD} {'READ/S':>10}  COMMAND"]
    lines += [_line(row) for row in rows if row["note"] != idle_note]
    if idle:
        lines.append(f"not seen to train, with torch imported: {', '.join(idle)}")
    return "\n".join(printable(line)[:width].rstrip() for line in lines)


def _line(row: Mapping[str, Any]) -> str:
    begin = f"{row['pid']:>8} {row['user']:<10.10}"
    if row["note"]:
        return f"{begin} {'-':>8}{row['note']:>43.43}  {row['command']}"
    waits = "".join(f"{_share(row['waits'][name]):>8}" for name in WAITS)
    read = size(row["read_bytes_per_s"])
    return f"{begin} {row['steps_per_s']:>8.1f}{waits} {read:>10}  {row['command']}"


def _share(share: float | None) -> str:
    return "-" if share is None else percent(share)
