"""What the control groups of this process kept from it: CPU time, memory, and going on at all."""

from __future__ import annotations

from math import nan
from pathlib import Path

from trainobs.core.control_groups import CGROUP, cgroups, own_of_version_2
from trainobs.host.procfs import PROC, read_bytes

THROTTLED = "sched/throttled_ns"
FROZEN = "sched/frozen_ns"
REFAULTS = "memory/refault_count"

_THROTTLED = {b"throttled_usec": 1000, b"throttled_time": 1}
"""Fields of `cpu.stat` in version 2 and 1 of control groups -> ns in their unit."""

_REFAULTS = {b"workingset_refault_file": 1}

_FROZEN = {b"frozen_usec": 1000}
"""Of `cgroup.stat.local` (Linux 6.18): also what the groups above were frozen."""

_Counts = dict[Path, int]


class GroupLimits:
    """Running totals of the control groups of a process, and of those above.

    It may enter others as it goes on: what these counted before is not its own.

    Args:
        tgid: the process; None: this one.
        proc: where `/proc` is mounted.
        cgroup: where control groups are.

    Source: Documentation/admin-guide/cgroup-v2.rst; Documentation/scheduler/sched-bwc.rst.

    Attributes:
        names: catalogue names, in the order of `totals`: what the groups do not tell is not there.
    """

    def __init__(self, tgid: int | None, proc: Path = PROC, cgroup: Path = CGROUP) -> None:
        self._tgid, self._proc, self._cgroup = tgid, proc, cgroup
        self._last = self._counts()
        self._totals = {name: 0 for name, counts in self._last.items() if counts}
        self.names = tuple(self._totals)

    def totals(self) -> tuple[float, ...]:
        """What they have counted since construction; NaN while none tells."""
        last, self._last = self._last, self._counts()
        for name in self.names:
            self._totals[name] += _growth(last[name], self._last[name])
        return tuple(float(self._totals[name]) if self._last[name] else nan for name in self.names)

    def _counts(self) -> dict[str, _Counts]:
        cpu, memory = (
            cgroups(self._proc, self._cgroup, controller, self._tgid)
            for controller in ("cpu", "memory")
        )
        refaults = {one / "memory.stat": _REFAULTS for one in memory[:1]}
        own = own_of_version_2(self._proc, self._cgroup, self._tgid)
        frozen = {one / "cgroup.stat.local": _FROZEN for one in own}
        return {
            # A group that can have no quota, as that of all processes, has no such field.
            THROTTLED: _known({one / "cpu.stat": _THROTTLED for one in cpu}, missing=0),
            REFAULTS: _known(refaults, missing=None),
            FROZEN: _known(frozen, missing=None),
        }


def _growth(last: _Counts, counts: _Counts) -> int:
    return sum(max(0, count - last.get(file, count)) for file, count in counts.items())


def _known(asked: dict[Path, dict[bytes, int]], missing: int | None) -> _Counts:
    """Of files that can be read, the value of one of some fields; `missing` where there is none."""
    found = {file: _field(file, fields, missing) for file, fields in asked.items()}
    return {file: value for file, value in found.items() if value is not None}


def _field(file: Path, fields: dict[bytes, int], missing: int | None) -> int | None:
    try:
        words = (line.split() for line in read_bytes(str(file)).splitlines())
        found = dict(pair for pair in words if len(pair) == 2)
        values = (int(found[name]) * by for name, by in fields.items() if name in found)
        return next(values, missing)
    except (OSError, ValueError):
        return None
