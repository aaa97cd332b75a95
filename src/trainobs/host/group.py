"""What the control groups of this process kept from it: CPU time, memory, and going on at all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import nan
from pathlib import Path

from trainobs.core.control_groups import CGROUP, folders, membership, own_of_version_2
from trainobs.host.procfs import PROC, read_bytes

THROTTLED = "sched/throttled_ns"
FROZEN = "sched/frozen_ns"
REFAULTS = "memory/refault_count"
OOM_KILLS = "memory/oom_kill_count"
HIGH = "memory/high_count"
STALLED = "memory/stalled_ns"


def _field(name: str) -> re.Pattern[bytes]:
    return re.compile(rb"^%s (\d+)$" % name.encode(), re.MULTILINE)


_THROTTLED = {_field("throttled_usec"): 1000, _field("throttled_time"): 1}
"""Fields of `cpu.stat` in version 2 and 1 of control groups -> ns in their unit."""

_REFAULTS = {_field("workingset_refault_file"): 1}

_FROZEN = {_field("frozen_usec"): 1000}
"""Of `cgroup.stat.local` (Linux 6.18): also what the groups above were frozen."""

_OOM_KILLS = {_field("oom_kill"): 1}

_HIGH = {_field("high"): 1}
"""Of `memory.events.local` (Linux 5.2): what each group on the way to the root does by itself."""

_STALLED = {re.compile(rb"^some .*total=(\d+)$", re.MULTILINE): 1000}

_MISSING: dict[str, int | None] = {THROTTLED: 0}
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

    Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst;
    Documentation/scheduler/sched-bwc.rst.

    Attributes:
        names: catalogue names, in the order of `totals`: what the groups do not tell is not there.
        kills_of_machine: whether the OOM killer's are those of the whole machine, since the group
            did not tell of its own as this began.
    """

    def __init__(self, tgid: int | None, proc: Path = PROC, cgroup: Path = CGROUP) -> None:
        self._tgid, self._proc, self._cgroup = tgid, proc, cgroup
        self._membership = membership(proc, tgid)
        self.kills_of_machine = False
        self._asked: dict[str, _Asked] = {}
        self._last: dict[str, _Counts] = {}
        self._begin()
        if not self._last[OOM_KILLS]:
            self.kills_of_machine = True
            self._begin()
        self._totals = {name: 0 for name, counts in self._last.items() if counts}
        self.names = tuple(self._totals)

    def totals(self) -> tuple[float, ...]:
        """What they have counted since construction; NaN while none tells."""
        last, self._last = self._last, self._counts()
        for name in self.names:
            self._totals[name] += _growth(last[name], self._last[name])
        known = self._last
        self._enter()
        return tuple(float(self._totals[name]) if known[name] else nan for name in self.names)

    def _enter(self) -> None:
        """Count from now on what other groups tell, if the process is in others."""
        now = membership(self._proc, self._tgid)
        if now and now != self._membership:  # who was killed is in none: its last one tells
            self._membership = now
            self._begin()

    def _begin(self) -> None:
        self._asked = self._files()
        self._last = self._counts()

    def _counts(self) -> dict[str, _Counts]:
        return {name: _known(asked, _MISSING.get(name)) for name, asked in self._asked.items()}

    def _files(self) -> dict[str, _Asked]:
        """The files of the groups that tell of each metric, and their fields."""
        groups, mount = self._membership, self._cgroup
        cpu, memory = (folders(groups, mount, name) for name in ("cpu", "memory"))
        kills = _nearest(memory, "memory.events", _OOM_KILLS)
        kills = kills or _nearest(memory, "memory.oom_control", _OOM_KILLS)  # of version 1
        if self.kills_of_machine:
            kills = _files([self._proc], "vmstat", _OOM_KILLS)
        return {
            THROTTLED: _throttling(cpu),
            REFAULTS: _nearest(memory, "memory.stat", _REFAULTS),
            FROZEN: _files(own_of_version_2(groups, mount), "cgroup.stat.local", _FROZEN),
            OOM_KILLS: kills,
            HIGH: _files(memory, "memory.events.local", _HIGH),
            STALLED: _files(own_of_version_2(groups, mount), "memory.pressure", _STALLED),
        }


def _throttling(groups: Sequence[Path]) -> _Asked:
    """What quotas keep from a process: those of its groups, or what each kept from its tasks.

    `cpu.stat.local` (Linux 6.6) of the group that counts for a process has what any above it kept
    from it, also those that a container hides. `cpu.stat` has what its own kept from all below.
    """
    for one in _files(groups, "cpu.stat.local", _THROTTLED):
        if _value(one, _THROTTLED, None) is not None:
            return {one: _THROTTLED}
    return _files(groups, "cpu.stat", _THROTTLED)


def _files(groups: Iterable[Path], name: str, fields: Mapping[re.Pattern[bytes], int]) -> _Asked:
    return {str(one / name): fields for one in groups}


def _nearest(groups: Iterable[Path], name: str, fields: Mapping[re.Pattern[bytes], int]) -> _Asked:
    """That of the group which counts for a process: not each of version 2 has the controller."""
    return _files([one for one in groups if (one / name).exists()][:1], name, fields)


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
