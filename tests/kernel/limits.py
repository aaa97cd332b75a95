"""Control groups with a limit on what they read and write."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

V1 = ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device")
V2 = "io.max"


def root() -> Path | None:
    """Where groups with such a limit can be made; None: nowhere on this machine."""
    for place, mark in ((Path("/sys/fs/cgroup/blkio"), V1[0]), (Path("/sys/fs/cgroup"), V2)):
        control = place / ("cgroup.procs" if mark != V2 else "cgroup.subtree_control")
        if not control.exists() or not os.access(place, os.W_OK):
            continue
        if "io" in control.read_text().split() if mark == V2 else _has_limits(place):
            return place
    return None


def _has_limits(place: Path) -> bool:
    return any((group / V1[0]).exists() for group in (place, *place.iterdir()))


def disk_of(place: Path) -> str:
    """MAJOR:MINOR of the disk that a directory lies on: a partition can have no limit."""
    device = os.stat(place).st_dev
    known = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    disk = known.parent if (known / "partition").exists() else known
    return (disk / "dev").read_text().strip()


@contextmanager
def limited(place: Path, bytes_per_s: int) -> Iterator[Path]:
    """A group that reads and writes that fast on the disk of `place`."""
    above = root()
    assert above is not None, "no group with a limit can be made here"
    group = above / f"trainobs-limit-{os.getpid()}"
    group.mkdir()
    try:
        if (group / V2).exists():
            (group / V2).write_text(f"{disk_of(place)} rbps={bytes_per_s} wbps={bytes_per_s}")
        else:
            for name in V1:
                (group / name).write_text(f"{disk_of(place)} {bytes_per_s}")
        yield group
    finally:
        group.rmdir()


def inside(group: Path, work: Callable[[], object]) -> Callable[[], None]:
    """`work`, done by whoever calls it as a member of a group, which it stays."""

    def joined() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        work()

    return joined


def cat_inside(group: Path, files: list[Path]) -> None:
    """Have a process of its own read files as a member of a group."""
    script = 'echo $$ > "$0"; exec cat "$@" > /dev/null'
    subprocess.run(["sh", "-c", script, str(group / "cgroup.procs"), *map(str, files)], check=True)
