"""The descendants whose counters are kept open, shared by two threads without a lock.

The observer's thread finds them (`FamilyWatch.refresh`) and publishes an immutable `Family`; the
training thread reads it. As in RCU, what left the family is closed only when no reader that
could still hold the old one is at work.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

from trainobs.host.procfs import TICK_NS, ProcFile, own_tgid, parse_stat, read_bytes
from trainobs.host.tree import find_tree, thread_ids

WORKER_NAME = b"pt_data_worker"
"""Name that `torch.utils.data._utils.worker._worker_loop` gives to its process."""

KEPT_LIMIT = 512
"""Descriptors kept at most; a usual soft limit is 1024, and training needs the rest."""


class ProcessIoFile(ProcFile):
    """`/proc/PID/io` of a descendant; `raw` is empty once it has ended.

    Attributes:
        tgid: process number.
        threads: counters of its threads, for a loader worker.
    """

    __slots__ = ("tgid", "threads")

    def __init__(self, proc: Path, tgid: int) -> None:
        super().__init__(f"{proc}/{tgid}/io")
        self.tgid = tgid
        self.threads: dict[str, ThreadSchedstatFile] | None = None


class ThreadSchedstatFile(ProcFile):
    """`/proc/PID/task/TID/schedstat` of a thread of a worker; `raw` outlives the thread.

    Attributes:
        start_ns: CLOCK_MONOTONIC at birth, ns, to the clock tick (10 ms).
        end_ns: when it was last seen alive, ns; 0 while it is.
    """

    __slots__ = ("end_ns", "start_ns")

    def __init__(self, path: str) -> None:
        boot_ns = parse_stat(read_bytes(f"{path}/stat")).start_ticks * TICK_NS
        super().__init__(f"{path}/schedstat")
        self.end_ns = 0
        slept_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
        self.start_ns = boot_ns - slept_ns

    def sums(self, seen_ns: int) -> tuple[int, int, int]:
        """Run-queue, off-CPU and CPU time of its life, ns, if it was last alive at `seen_ns`."""
        cpu_ns, runqueue_ns = map(int, self.raw.split()[:2])
        alive_ns = (self.end_ns or seen_ns) - self.start_ns
        return runqueue_ns, max(0, alive_ns - cpu_ns), cpu_ns


class Family(NamedTuple):
    """What one sample reads.

    Attributes:
        processes: all descendants, parents before children.
        threads: all threads of loader workers.
        started_ns: sum of the threads' `start_ns`.
        ended_runqueue_ns: run-queue time of threads that have ended.
        ended_offcpu_ns: off-CPU time of threads that have ended.
        ended_cpu_ns: CPU time of threads that have ended.
    """

    processes: tuple[ProcessIoFile, ...] = ()
    threads: tuple[ThreadSchedstatFile, ...] = ()
    started_ns: int = 0
    ended_runqueue_ns: int = 0
    ended_offcpu_ns: int = 0
    ended_cpu_ns: int = 0


class FamilyWatch:
    """Keeps the family up to date.

    Attributes:
        family: the current family; replaced as a whole.
        reading: set by the training thread for as long as it uses a family.
        seen_ns: CLOCK_MONOTONIC of the training thread's last look at the threads, ns.
    """

    def __init__(self, proc: Path) -> None:
        self.family = Family()
        self.reading = False
        self.seen_ns = time.monotonic_ns()
        self._proc = proc
        self._root = own_tgid(proc)
        self._tree = find_tree(proc)
        self._known: dict[int, ProcessIoFile] = {}
        self._retired: list[ProcFile] = []
        self._ended = [0, 0, 0]
        self._kept = 0
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._closed = False

    def refresh(self) -> None:
        """Finds new descendants and threads, lets go of ended ones; for the observer's thread."""
        with self._lock:
            if self._closed:
                return
            self._close_retired()
            self._find()
            for process in self._known.values():
                self._follow(process)
            self._publish()

    def close(self) -> None:
        """Closes every descriptor; also in a forked child, where the lock may be held for ever."""
        if os.getpid() != self._owner:
            self._close_all()
            return
        with self._lock:
            self._close_all()

    def _find(self) -> None:
        for process in [p for p in self._known.values() if not p.alive()]:
            self._drop(process)
        for tgid in self._tree.descendants(self._root) or ():
            self._adopt(tgid)

    def _adopt(self, tgid: int) -> None:
        if tgid in self._known or self._kept >= KEPT_LIMIT:
            return
        try:
            self._known[tgid] = ProcessIoFile(self._proc, tgid)
        except OSError:
            return  # ended already, or runs as another user: it counts when its parent reaps it
        self._kept += 1

    def _follow(self, process: ProcessIoFile) -> None:
        path = f"{self._proc}/{process.tgid}"
        if process.threads is None:
            if not _is_worker(path):
                return
            process.threads = {}
        threads = process.threads
        for tid in [tid for tid, thread in threads.items() if not thread.alive()]:
            self._end(threads.pop(tid))
        for tid in thread_ids(self._proc, process.tgid):
            if tid not in threads and self._kept < KEPT_LIMIT:
                self._adopt_thread(threads, tid, f"{path}/task/{tid}")

    def _adopt_thread(self, threads: dict[str, ThreadSchedstatFile], tid: str, path: str) -> None:
        try:
            threads[tid] = ThreadSchedstatFile(path)
        except OSError:
            return  # ended between the listing and now
        self._kept += 1

    def _drop(self, process: ProcessIoFile) -> None:
        del self._known[process.tgid]
        for thread in (process.threads or {}).values():
            self._end(thread)
        self._retire(process)

    def _end(self, thread: ThreadSchedstatFile) -> None:
        for place, ns in enumerate(thread.sums(self.seen_ns)):
            self._ended[place] += ns
        self._retire(thread)

    def _retire(self, kept: ProcFile) -> None:
        self._kept -= 1
        self._retired.append(kept)

    def _publish(self) -> None:
        # In the order found: parents first. One whose parent has ended stays: it is still ours.
        processes = tuple(self._known.values())
        threads = tuple(thread for p in processes for thread in (p.threads or {}).values())
        started_ns = sum(thread.start_ns for thread in threads)
        self.family = Family(processes, threads, started_ns, *self._ended)
        self._close_retired()

    def _close_retired(self) -> None:
        # The family without them is public. A sample that began before that has set `reading`:
        # then its descriptors must stay, or their numbers could name other files meanwhile.
        if self.reading:
            return
        for kept in self._retired:
            kept.close()
        self._retired.clear()

    def _close_all(self) -> None:
        self._closed = True
        self.family = Family()
        for process in self._known.values():
            self._retired += [process, *(process.threads or {}).values()]
        self._known.clear()
        for kept in self._retired:
            kept.close()
        self._retired.clear()


def _is_worker(path: str) -> bool:
    try:
        return read_bytes(f"{path}/comm").strip() == WORKER_NAME
    except OSError:
        return False  # ended meanwhile
