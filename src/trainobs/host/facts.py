"""What machine a run was on, for `run.json`."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from trainobs.core.control_groups import CGROUP, MEMORY_LIMITS, cgroups, number_in

_FIRST_NAMESPACE = "cgroup:[4026531835]"
"""That of the machine: PROC_CGROUP_INIT_INO in include/linux/proc_ns.h, the same in all kernels."""


def host_facts(
    proc: Path = Path("/proc"), cgroup: Path = CGROUP, tgid: int | None = None
) -> dict[str, object]:
    """Facts about this machine; what cannot be found out is None. Never raises.

    Args:
        proc: where `/proc` is mounted.
        cgroup: where control groups are.
        tgid: the process that is observed; None: this one.

    Returns:
        hostname, kernel (release), machine (architecture), python (version), cpu_count (online
        CPUs), usable_cpu_count (allowed by affinity), cpu_quota (CPUs' worth of time that the
        cgroup allows, the tightest on the way to the root), cpu_groups_hidden (whether there may be
        others on that way that are not seen from here), memory_bytes (of the machine),
        memory_limit_bytes (less than that, if its cgroups allow less), local_world_size (ranks of
        the job on this machine, where the launcher says so).
    """
    return {
        "hostname": platform.node(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version() if tgid is None else None,
        "cpu_count": os.cpu_count(),
        "usable_cpu_count": usable_cpus(tgid or 0),
        "cpu_quota": cpu_quota(proc, cgroup, tgid),
        "cpu_groups_hidden": _are_hidden(proc, cgroup, tgid),
        "memory_bytes": _memory_bytes(),
        "memory_limit_bytes": _memory_limit(proc, cgroup, tgid),
        "local_world_size": _local_world_size() if tgid is None else None,
    }


def usable_cpus(tid: int) -> int | None:
    """CPUs that affinity allows a thread, 0 for the calling one; None if unknown."""
    try:
        return len(os.sched_getaffinity(tid))
    except (AttributeError, OSError):
        return None  # not Linux, or a sandbox that forbids the call


def _local_world_size() -> int | None:
    value = os.environ.get("LOCAL_WORLD_SIZE", "")  # set by torchrun
    return int(value) if value.isdecimal() else None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _are_hidden(proc: Path, mount: Path, tgid: int | None) -> bool:
    """Whether groups of a process for CPU time, or some of those above, cannot be seen."""
    try:
        is_first = os.readlink(proc / "self" / "ns" / "cgroup") == _FIRST_NAMESPACE
    except OSError:
        is_first = False
    leaf = next(iter(cgroups(proc, mount, "cpu", tgid)), None)
    return not is_first or leaf is None or not (leaf / "cpu.stat").exists()


def _memory_limit(proc: Path, mount: Path, tgid: int | None) -> int | None:
    """The tightest limit on the way to the root; one beyond the machine's memory is none."""
    files = [one / name for one in cgroups(proc, mount, "memory", tgid) for name in MEMORY_LIMITS]
    limits = [limit for file in files if (limit := number_in(file)) is not None]
    tightest, machine = min(limits, default=None), _memory_bytes()
    return None if tightest is None or (machine and tightest >= machine) else tightest


def cpu_quota(proc: Path, mount: Path, tgid: int | None) -> float | None:
    """CPUs' worth of time that the cgroups of a process allow; None: any. See `host_facts`."""
    quotas = [quota for folder in cgroups(proc, mount, "cpu", tgid) if (quota := _quota(folder))]
    return min(quotas, default=None)


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        # "max" in version 2 and -1 in version 1 mean that there is no limit.
        return int(quota) / int(period) if quota != "max" and int(quota) > 0 else None
    except (OSError, ValueError):
        return None  # no such controller here, or a root cgroup, which has no limit
