"""What the control groups of this process kept from it: CPU time and memory."""

from __future__ import annotations

from pathlib import Path

from trainobs.host.facts import CGROUP, cgroups
from trainobs.host.procfs import PROC, read_bytes

THROTTLED = "sched/throttled_ns"
REFAULTS = "memory/refault_count"

_THROTTLED = {b"throttled_usec": 1000, b"throttled_time": 1}
"""Fields of `cpu.stat` in version 2 and 1 of control groups -> ns in their unit."""

_REFAULTS = {b"workingset_refault_file": 1}


class GroupLimits:
    """Running totals of the control groups of a process, and of those above.

    Args:
        tgid: the process; None: this one.

    Source: Documentation/admin-guide/cgroup-v2.rst; Documentation/scheduler/sched-bwc.rst.

    Attributes:
        names: catalogue names, in the order of `totals`: what the groups do not tell is not there.
    """

    def __init__(self, tgid: int | None) -> None:
        cpu = [folder / "cpu.stat" for folder in cgroups(PROC, CGROUP, "cpu", tgid)]
        memory = [folder / "memory.stat" for folder in cgroups(PROC, CGROUP, "memory", tgid)[:1]]
        asked = {THROTTLED: (cpu, _THROTTLED), REFAULTS: (memory, _REFAULTS)}
        self._asked = {name: one for name, one in asked.items() if _sum(*one) is not None}
        self.names = tuple(self._asked)

    def totals(self) -> tuple[float, ...]:
        """What they have counted so far; NaN for what has gone."""
        found = (_sum(files, fields) for files, fields in self._asked.values())
        return tuple(float("nan") if total is None else float(total) for total in found)


def _sum(files: list[Path], fields: dict[bytes, int]) -> int | None:
    """Sum of one of some fields over the files that have it; None where none has."""
    found = [value for file in files if (value := _field(file, fields)) is not None]
    return sum(found) if found else None


def _field(file: Path, fields: dict[bytes, int]) -> int | None:
    try:
        words = (line.split() for line in read_bytes(str(file)).splitlines())
        found = dict(pair for pair in words if len(pair) == 2)
        return next((int(found[name]) * by for name, by in fields.items() if name in found), None)
    except (OSError, ValueError):
        return None
