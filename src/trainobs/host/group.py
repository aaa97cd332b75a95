"""What the control groups of this process kept from it: CPU time, memory, and going on at all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import nan
from pathlib import Path

from trainobs.core.control_groups import CGROUP, folders, membership, own_of_version_2
from trainobs.host.procfs import PROC, read_bytes

THROTTLED = "sched/throttled_ns"
FROZEN = "sched/frozen_ns"
REFAULTS = "memory/refault_count"


def _field(name: str) -> re.Pattern[bytes]:
    return re.compile(rb"^%s (\d+)$" % name.encode(), re.MULTILINE)


_THROTTLED = {_field("throttled_usec"): 1000, _field("throttled_time"): 1}
"""Fields of `cpu.stat` in version 2 and 1 of control groups -> ns in their unit."""

_REFAULTS = {_field("workingset_refault_file"): 1}

_FROZEN = {_field("frozen_usec"): 1000}
"""Of `cgroup.stat.local` (Linux 6.18): also what the groups above were frozen."""

_MISSING: dict[str, int | None] = {THROTTLED: 0, REFAULTS: None, FROZEN: None}
"""What a file without any of the fields says: a group that can have no quota, as that of all
processes, has none for throttling."""

_Asked = dict[str, Mapping[re.Pattern[bytes], int]]
_Counts = dict[str, int]


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
        self._membership = ""
        self._asked = _asked("", cgroup)
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
        now = membership(self._proc, self._tgid)
        if now != self._membership:
            self._membership, self._asked = now, _asked(now, self._cgroup)
        return {name: _known(asked, _MISSING[name]) for name, asked in self._asked.items()}


def _asked(groups: str, mount: Path) -> dict[str, _Asked]:
    """The files of some groups that tell of each metric, and their fields."""
    cpu, memory = (folders(groups, mount, name) for name in ("cpu", "memory"))
    return {
        THROTTLED: _files(cpu, "cpu.stat", _THROTTLED),
        REFAULTS: _files(memory[:1], "memory.stat", _REFAULTS),
        FROZEN: _files(own_of_version_2(groups, mount), "cgroup.stat.local", _FROZEN),
    }


def _files(groups: Iterable[Path], name: str, fields: Mapping[re.Pattern[bytes], int]) -> _Asked:
    return {str(one / name): fields for one in groups}


def _growth(last: _Counts, counts: _Counts) -> int:
    return sum(max(0, count - last.get(file, count)) for file, count in counts.items())


def _known(asked: _Asked, missing: int | None) -> _Counts:
    """Of files that can be read, the value of one of some fields; `missing` where there is none."""
    found = {file: _value(file, fields, missing) for file, fields in asked.items()}
    return {file: value for file, value in found.items() if value is not None}


def _value(file: str, fields: Mapping[re.Pattern[bytes], int], missing: int | None) -> int | None:
    try:
        text = read_bytes(file)
    except OSError:
        return None
    values = (int(found[1]) * by for name, by in fields.items() if (found := name.search(text)))
    return next(values, missing)
