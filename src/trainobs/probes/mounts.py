"""Mount points below a directory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")


def mount_points(mountinfo: Path = MOUNTINFO) -> list[str]:
    """All mount points of this process (proc_pid_mountinfo(5), field 5), sorted.

    Raises:
        OSError: /proc cannot be read.
    """
    lines = mountinfo.read_bytes().splitlines()  # a name may be of bytes that are not UTF-8
    return sorted({os.fsdecode(_unescape(line.split(b" ", 5)[4])) for line in lines})


def mounts_below(directory: Path, points: Iterable[str]) -> list[Path]:
    """Those of some mount points that are strictly below a directory."""
    root = os.path.join(os.path.realpath(directory), "")
    return [Path(point) for point in points if point.startswith(root) and point != root]


def _unescape(field: bytes) -> bytes:
    """The kernel writes blanks, tabs, newlines and backslashes as octal escapes."""
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes((int(match[1], 8),)), field)
