"""How much of this run's CPUs other processes took."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from trainobs.host.procfs import TICK_NS, own_tgid, read_bytes
from trainobs.host.tree import find_tree

NAME = "sched/others_cpu_ratio"

WINDOW_NS = 1_000_000_000
"""Time between two readings, at least: the kernel counts CPU time in ticks of 10 ms."""


_BUSY = slice(1, 4)  # user, nice, system
_BUSY_TOO = slice(6, 9)  # irq, softirq, steal; guest time is in user, waiting for I/O is idle


class OthersCpu:
    """CPU time of the CPUs a process may use, less that of the process and its descendants.

    Args:
        proc: where `/proc` is mounted.
        tgid: the process; None: this one.
        tid: its training thread, 0 for the calling one: each has its own affinity.

    Notes:
        Descendants on other CPUs, and one that ended between two readings without being waited
        for, make the value too small; it is never below 0.
    """

    def __init__(self, proc: Path = Path("/proc"), tgid: int | None = None, tid: int = 0) -> None:
        self._proc = proc
        self._tree = find_tree(proc)
        self._tgid = tgid
        self._root = tgid or own_tgid(proc)
        self._tid = tid
        self._cpus: set[int] = set()
        self._last: tuple[int, int, int] | None = None

    def reading(self) -> tuple[int, float] | None:
        """CLOCK_MONOTONIC and the share of its CPUs' time that others had since the last reading.

        None where the last one was less than `WINDOW_NS` ago, for the first, and where these are
        other CPUs than at the last one.

        Raises:
            OSError: `/proc` does not tell.
        """
        now = time.monotonic_ns()
        if self._last and now - self._last[0] < WINDOW_NS:
            return None
        own = self._own_ns()
        if own is None:
            return None
        before, cpus = self._cpus, os.sched_getaffinity(self._tid)
        self._cpus = cpus
        last, self._last = self._last, (now, self._busy_ns(cpus), own)
        if last is None or cpus != before:
            return None
        grown = [after - before for after, before in zip(self._last, last, strict=True)]
        share = (grown[1] - grown[2]) / (grown[0] * len(cpus))
        return now, min(1.0, max(0.0, share))

    def _busy_ns(self, cpus: set[int]) -> int:
        names = {b"cpu%d" % cpu for cpu in cpus}
        lines = (line.split() for line in read_bytes(f"{self._proc}/stat").splitlines())
        busy = (line[_BUSY] + line[_BUSY_TOO] for line in lines if line and line[0] in names)
        return sum(int(ticks) for line in busy for ticks in line) * TICK_NS

    def _own_ns(self) -> int | None:
        """CPU time of the process and of all descendants, those that have ended included."""
        below = self._tree.descendants(self._root)
        if below is None:
            return None
        if self._tgid is not None:
            return sum(map(self._lived_ns, [self._tgid, *below]))
        usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        own = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        return int(own * 1e9) + sum(map(self._lived_ns, below))

    def _lived_ns(self, tgid: int) -> int:
        try:
            raw = read_bytes(f"{self._proc}/{tgid}/stat")
        except OSError:
            return 0  # ended meanwhile
        fields = raw[raw.rindex(b")") + 2 :].split()
        return sum(map(int, fields[11:15])) * TICK_NS  # utime, stime, cutime, cstime
