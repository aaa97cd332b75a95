"""The control groups of a process: where they are, and what memory they leave to it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")

MEMORY_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
"""Files of version 2 and 1 of control groups. Beyond `high` pages are taken away at once."""

_TAKEN = ("memory.current", "memory.usage_in_bytes")
_GIVEN_BACK = ("inactive_file", "active_file", "slab_reclaimable")
"""Of memory.stat: pages of files, and names and inodes; version 1 does not tell of the latter."""


def cgroups(proc: Path, mount: Path, controller: str, tgid: int | None = None) -> tuple[Path, ...]:
    """Folders of a process's cgroups for a controller, each followed by its parents.

    Without `tgid` they are those of this process.
    """
    return folders(membership(proc, tgid), mount, controller)


def membership(proc: Path, tgid: int | None = None) -> str:
    """The control groups that a process is in, as `/proc/PID/cgroup` tells; nothing if it cannot.

    Without `tgid` they are those of this process.
    """
    try:
        return (proc / str(tgid or "self") / "cgroup").read_text()
    except (OSError, UnicodeDecodeError):
        return ""


@lru_cache(maxsize=32)  # an observer asks every second, and a process hardly ever moves
def folders(groups: str, mount: Path, controller: str) -> tuple[Path, ...]:
    """See `cgroups`; `groups` is what `membership` returned.

    Source: Documentation/admin-guide/cgroup-v2.rst; lines of `/proc/self/cgroup` are
    `id:controllers:path`, with id 0 and no controllers for version 2. A group beyond the root of
    this process's cgroup namespace is shown from there, as `/../other` (cgroup_namespaces(7)):
    none of its folders can be seen, for the root is another group. The same goes for all where the
    mount begins above that root, as `docker run --volume /sys/fs/cgroup:/sys/fs/cgroup` has it.
    """
    above = _begins_above()
    found: list[Path] = []
    for line in groups.splitlines():
        if line.count(":") < 2:
            continue
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        if ".." in path.split("/"):
            continue
        root = mount / controllers
        if root in above:
            continue
        leaf = root / path.lstrip("/")
        found += [leaf, *(parent for parent in leaf.parents if parent.is_relative_to(root))]
    return tuple(found)


def _begins_above() -> set[Path]:
    """Mounts that show groups from above the root of this process's cgroup namespace."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    found = [line.split(" ", 5)[3:5] for line in lines]
    roots = {place: root for root, place in found}  # the last one at a place covers others
    return {Path(place) for place, root in roots.items() if root.startswith("/..")}


def own_of_version_2(groups: str, mount: Path) -> list[Path]:
    """Where the own cgroup of a process may be seen, if it is of version 2."""
    mounts = (mount, mount / "unified")  # as systemd has it where version 1 has the controllers
    return [folder for place in mounts for folder in folders(groups, place, "")[:1]]


def is_frozen(tgid: int, proc: Path = Path("/proc"), mount: Path = CGROUP) -> bool:
    """Whether a process is kept from going on, by its cgroup or one above (`docker pause`).

    Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/freezer-subsystem.rst.
    """
    groups = membership(proc, tgid)
    told = [(one / "cgroup.events", "frozen 1") for one in own_of_version_2(groups, mount)]
    told += [(one / "freezer.state", "FROZEN") for one in folders(groups, mount, "freezer")]
    return any(line in _lines(file) for file, line in told)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def number_in(file: Path) -> int | None:
    """What a file of a group says, if it is a number."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None  # no such controller here, or "max"


def memory_left(proc: Path = Path("/proc"), mount: Path = CGROUP) -> int | None:
    """Bytes that this process can take before its groups, or those above, are at their limits.

    As in `MemAvailable`, what the kernel can give back of it is left. None where no limit is known.

    Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
    """
    left = []
    for folder in cgroups(proc, mount, "memory"):
        limits, taken = (
            [found for name in names if (found := number_in(folder / name)) is not None]
            for names in (MEMORY_LIMITS, _TAKEN)
        )
        if limits and taken:
            left.append(max(0, min(limits) - taken[0] + _reclaimable_bytes(folder)))
    return min(left, default=None)


def _reclaimable_bytes(folder: Path) -> int:
    """What can be taken from a group and those below it; version 1 calls that the total."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
        fields = {name: int(count) for name, count in map(str.split, lines)}
    except (OSError, ValueError):
        return 0
    return sum(fields.get(f"total_{name}", fields.get(name, 0)) for name in _GIVEN_BACK)
