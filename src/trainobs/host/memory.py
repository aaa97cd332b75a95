"""Memory of the training process and its loader workers, as `/proc` and getrusage tell it."""

from __future__ import annotations

import math
import resource

from trainobs.host.family import WORKER_NAME
from trainobs.host.procfs import PAGE_BYTES, PROC, Stat, own_tgid, parse_stat, read_bytes
from trainobs.host.tree import find_tree


def own_faults() -> int:
    """Major faults of this process so far, those of all its threads.

    Notes:
        The kernel goes through the threads: a call takes 0.9 us with a dozen of them.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


class WorkerMemory:
    """Resident memory and major faults of a process's loader workers; for one thread.

    Args:
        tgid: the process; None: this one.

    Notes:
        A rank may be the parent of other ranks, whose workers are not its own: only children
        count, and those of the server that forks them.
    """

    def __init__(self, tgid: int | None = None) -> None:
        self._root = tgid or own_tgid(PROC)
        self._tree = find_tree(PROC)
        self._tgids: list[int] = []
        self._faults: dict[int, int] = {}
        self._ended_faults = 0

    def read(self) -> tuple[float, float]:
        """Bytes that all workers have in memory (NaN without a worker), and their faults so far."""
        found = self._tree.descendants(self._root)
        self._tgids = self._tgids if found is None else found
        workers = self._workers()
        faults = {tgid: stat.major_faults for tgid, stat in workers.items()}
        self._ended_faults += sum(n for tgid, n in self._faults.items() if tgid not in faults)
        self._faults = faults
        bytes_ = PAGE_BYTES * sum(stat.resident_pages for stat in workers.values())
        return bytes_ if workers else math.nan, self._ended_faults + sum(faults.values())

    def _workers(self) -> dict[int, Stat]:
        stats = {tgid: stat for tgid in self._tgids if (stat := self._stat(tgid))}
        parents = {self._root, *(t for t, stat in stats.items() if self._forks_for_us(t, stat))}
        ours = {t: stat for t, stat in stats.items() if stat.parent in parents}
        return {t: stat for t, stat in ours.items() if stat.name == WORKER_NAME.decode()}

    def _stat(self, tgid: int) -> Stat | None:
        try:
            return parse_stat(read_bytes(f"{PROC}/{tgid}/stat"))
        except OSError:
            return None  # ended meanwhile

    def _forks_for_us(self, tgid: int, stat: Stat) -> bool:
        """Whether it is the fork server of multiprocessing, which is started by that name."""
        if stat.parent != self._root or stat.name == WORKER_NAME.decode():
            return False
        try:
            return b"multiprocessing.forkserver" in read_bytes(f"{PROC}/{tgid}/cmdline")
        except OSError:
            return False
