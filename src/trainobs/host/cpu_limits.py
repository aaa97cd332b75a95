"""The CPUs that a run may use, looked at again and again: it may be confined as it goes on."""

from __future__ import annotations

from pathlib import Path

from trainobs.core.control_groups import CGROUP
from trainobs.host.facts import cpu_quota, usable_cpus
from trainobs.host.procfs import PROC

MOST = "most_usable_cpu_count"


class CpuLimits:
    """Keeps facts about a machine true of all of a run.

    As soon as any changes, `usable_cpu_count` and `cpu_quota` are the least that was seen, and
    `most_usable_cpu_count`, which knows no quota, is no longer None.

    Args:
        host: from `host_facts`; these are changed.
        tgid: the process; None: this one.
        tid: its training thread: each has its own affinity.
    """

    def __init__(
        self,
        host: dict[str, object],
        tgid: int | None,
        tid: int,
        proc: Path = PROC,
        cgroup: Path = CGROUP,
    ) -> None:
        self._host, self._tgid, self._tid = host, tgid, tid
        self._proc, self._cgroup = proc, cgroup
        host[MOST] = None  # now: who writes these facts meanwhile cannot have more of them
        usable, quota = self._first = host["usable_cpu_count"], host["cpu_quota"]
        self._counts = {usable} if isinstance(usable, int) else set()
        self._quotas = {quota} if isinstance(quota, float) else set()

    def look(self) -> None:
        """Read them once more."""
        usable = usable_cpus(self._tid)
        if usable is None or not self._counts:
            return  # the thread has ended, or nobody may know
        quota = cpu_quota(self._proc, self._cgroup, self._tgid)
        if (usable, quota) == self._first and self._host[MOST] is None:
            return
        self._counts.add(usable)
        self._quotas |= set() if quota is None else {quota}
        self._host["usable_cpu_count"] = min(self._counts)
        self._host["cpu_quota"] = min(self._quotas, default=None)
        self._host[MOST] = max(self._counts)
