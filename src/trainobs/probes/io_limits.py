"""Whether a control group of a process limits what it reads or writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_V1 = tuple(f"blkio.throttle.{what}_device" for what in ("read_bps", "read_iops"))
_V2 = ("io.max",)
_ROOTS = {"blkio": (Path("blkio"), _V1), "": (Path(), _V2)}
"""Controller, as /proc names it -> where its groups are, and the files with limits on reads."""

_OF_READS = re.compile(r"^\d+:\d+ (\d|.*\br(bps|iops)=\d)", re.MULTILINE)
"""A device's limit; in version 2 it stands beside those of writes."""


def has_read_limit(
    tgid: int, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> bool:
    """Whether a group of a process, or one above, holds reads back; False where nobody can tell.

    Args:
        tgid: the process, as this process sees it.
        proc: where the kernel tells of processes.
        groups: where control groups are mounted.
    """
    with suppress(OSError, ValueError):
        lines = (proc / str(tgid) / "cgroup").read_text().splitlines()
        return any(map(_limits_reads, _files(lines, groups)))
    return False


def _files(lines: list[str], groups: Path) -> Iterator[Path]:
    """Files with limits; in a container the group of a process may be the root that it sees."""
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            place, names = _ROOTS.get(controller, (Path(), ()))
            group = PurePosixPath(path.lstrip("/"))
            for above in (group, *group.parents):
                yield from (groups / place / above / name for name in names)


def _limits_reads(path: Path) -> bool:
    try:
        return bool(_OF_READS.search(path.read_text()))
    except OSError:
        return False
