"""What other trainings of the same job take of the CPUs, where nobody calls them ranks.

`torch.multiprocessing.spawn` and its like start several processes that train, and tell none which
one it is. To each the others are other processes, that take its CPUs.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from trainobs.attach.process import cpu_s, look_at
from trainobs.host.procfs import PROC, read_bytes
from trainobs.host.tree import find_tree

_COMPUTES = 0.01
"""Share of a CPU: who waits for the others uses less."""


class Siblings:
    """The processes with torch of the process group of one, but for those that it has started.

    A shell, or who starts processes as a shell does, puts what belongs together into one group.

    Args:
        tgid: the process.
    """

    def __init__(self, tgid: int) -> None:
        self._tgid, self._group = tgid, _group(tgid)
        self._began_s, self._before = time.monotonic(), self._used()

    def note(self) -> dict[str, float] | None:
        """How many computed all the time, and their share of its CPUs; None without any."""
        took_s, now = time.monotonic() - self._began_s, self._used()
        grown = [now[tgid] - before for tgid, before in self._before.items() if tgid in now]
        grown = [used_s for used_s in grown if used_s >= _COMPUTES * took_s > 0]
        if not grown:
            return None
        try:
            cpus = len(os.sched_getaffinity(self._tgid))
        except OSError:
            cpus = len(os.sched_getaffinity(0))  # it has ended
        return {"processes": len(grown), "cpu_ratio": min(1.0, sum(grown) / (took_s * cpus))}

    def _used(self) -> dict[int, float]:
        """CPU time so far of each."""
        own = {self._tgid, *(find_tree(PROC).descendants(self._tgid) or ())}
        found = {}
        for tgid in (int(name) for name in os.listdir(PROC) if name.isdigit()):
            if tgid in own or self._group is None or _group(tgid) != self._group:
                continue
            with suppress(OSError):
                if look_at(tgid).torch:
                    found[tgid] = cpu_s(tgid)
        return found


def _group(tgid: int) -> int | None:
    with suppress(OSError):
        raw = read_bytes(f"{PROC}/{tgid}/stat")
        return int(raw[raw.rindex(b")") + 2 :].split()[2])  # proc_pid_stat(5): pgrp
    return None
