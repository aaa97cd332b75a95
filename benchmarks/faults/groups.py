"""Control groups of our own, below the one we are in; removed on every way out. Needs root."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
JOIN = "TRAINOBS_FAULT_GROUPS"
"""Variable with the `cgroup.procs` files that a job joins, separated by colons."""


class Unavailable(Exception):
    """This machine does not let the fault be injected; says why."""


@contextmanager
def group(controller: str, settings: dict[str, str]) -> Iterator[Path]:
    """A group of one controller ("cpu", "io", "memory") with settings of version 2 of its files.

    Raises:
        Unavailable: there is no such controller, or not for us.
    """
    parent, is_old = _parent(controller)
    folder = parent / f"trainobs-fault-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        raise Unavailable(f"cannot make a control group: {error}") from error
    try:
        for name, value in settings.items():
            for file, text in _of_version_1(name, value) if is_old else [(name, value)]:
                _set(folder, file, text)
        yield folder
    finally:
        _remove(folder)


def join_groups() -> None:
    """Put this process into the groups that `JOIN` names."""
    for file in filter(None, os.environ.get(JOIN, "").split(":")):
        Path(file).write_text(str(os.getpid()))


def device_of(path: Path) -> str:
    """`major:minor` of the whole disk that holds a path.

    Raises:
        Unavailable: the file system has no block device.
    """
    number = path.stat().st_dev
    folder = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    if not folder.exists():
        raise Unavailable(f"{path} is on no block device")
    disk = folder.parent if (folder / "partition").exists() else folder
    return (disk / "dev").read_text().strip()


def _parent(controller: str) -> tuple[Path, bool]:
    """Folder for groups of ours, and whether it is of version 1."""
    lines = [line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()]
    mine = {name: path.lstrip("/") for names, path in lines for name in names.split(",")}
    old = {"io": "blkio"}.get(controller, controller)
    if (_MOUNT / old / "cgroup.procs").exists():
        return _MOUNT / old / mine.get(old, ""), True
    folder = _MOUNT / mine.get("", "")
    with suppress(OSError):
        if controller in (folder / "cgroup.subtree_control").read_text().split():
            return folder, False
    raise Unavailable(f"no control group for {controller}")


def _of_version_1(name: str, value: str) -> list[tuple[str, str]]:
    """Files and texts of version 1 that say the same."""
    if name == "cpu.max":
        quota, period = value.split()
        return [("cpu.cfs_period_us", period), ("cpu.cfs_quota_us", quota)]
    if name == "io.max":
        return [("blkio.throttle.read_bps_device", value.replace("rbps=", ""))]
    return [({"memory.max": "memory.limit_in_bytes"}[name], value)]


def _set(folder: Path, name: str, value: str) -> None:
    try:
        (folder / name).write_text(value)
    except OSError as error:
        raise Unavailable(f"cannot set {name}: {error}") from error


def _remove(folder: Path) -> None:
    """Its last process may take a moment to go."""
    for _ in range(100):
        with suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.05)
    print(f"left behind: {folder}")
