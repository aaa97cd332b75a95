"""Mount points below a directory."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")


def mounts_below(directory: Path, mountinfo: Path = MOUNTINFO) -> list[Path]:
    """Mount points strictly below a directory (proc_pid_mountinfo(5), field 5)."""
    root = directory.resolve()
    points = (_unescape(line.split(" ", 5)[4]) for line in mountinfo.read_text().splitlines())
    return sorted({point for point in map(Path, points) if root in point.parents})


def _unescape(field: str) -> str:
    """The kernel writes blanks, tabs, newlines and backslashes as octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
