"""From kept files to running totals: one class for each kind of source.

Every class has `totals`, whose values never fall. They differ in what they do about a source that
ends, for the kernel hands I/O counts on to the parent and drops scheduler counts.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from trainobs.host.family import Family, FamilyWatch, ThreadSchedstatFile
from trainobs.host.procfs import READ_SIZE, ProcFile, keep, number_behind

IO_FIELDS = (b"rchar:", b"wchar:", b"read_bytes:", b"write_bytes:")
PASSES = 3
"""Passes over the tree until none of its processes was reaped meanwhile."""

REST = 100
"""What grows with the machine rests for this many times what reading it took: 1 % of a CPU."""


class TreeIo:
    """`/proc/PID/io` of this process and all its descendants.

    The file of a process holds all its threads, ended ones too, and all children that it has
    waited for (`do_io_accounting` in fs/proc/base.c, `wait_task_zombie` in kernel/exit.c); a
    zombie can still be read. So the sum over the living is the truth, known or not, as long as
    no process is reaped between two reads of one pass: then the pass is made again.

    Notes:
        A process that is not handed on (its parent ignores SIGCHLD, or ended first, or it
        changed its user) takes its counts away; they are added back, less what the others did
        in the same step. The kernel adds a reaped child to its parent about 1 us before the child
        vanishes: a pass in between counts it twice.
    """

    def __init__(self, own: ProcFile) -> None:
        """`own` is `/proc/self/io`."""
        words = own.raw.split()
        self._own = own
        self._words = len(words)
        self._at = tuple(words.index(field) + 1 for field in IO_FIELDS)
        self._held = [0, 0, 0, 0]
        self._last = [0, 0, 0, 0]

    def totals(self, family: Family) -> list[int]:
        """Bytes since birth, in the order of `IO_FIELDS`."""
        for _ in range(PASSES):
            if self._read(family):
                break
        words = b"".join([self._own.raw, *[p.raw for p in family.processes]]).split()
        step = self._words
        sums = [sum(map(int, words[at::step])) for at in self._at]
        held = self._held
        for i, last in enumerate(self._last):
            sums[i] += held[i]
            if sums[i] < last:
                held[i] += last - sums[i]
                sums[i] = last
        self._last = sums
        return sums

    def _read(self, family: Family) -> bool:
        # Parents first: a child reaped after its parent was read is missing, not counted twice.
        complete = True
        self._own.raw = os.pread(self._own.fd, READ_SIZE, 0)
        for process in family.processes:
            try:
                process.raw = os.pread(process.fd, READ_SIZE, 0)
            except OSError:
                complete = complete and not process.raw
                process.raw = b""
        return complete


class WorkerTime:
    """`schedstat` of all threads of the loader workers.

    Nobody inherits these counts, so those of ended threads are kept. Many workers take long to
    read: then they are read less often, and a short step may show its neighbours' times.
    """

    def __init__(self, watch: FamilyWatch) -> None:
        """`watch` learns when the threads were last read."""
        self._watch = watch
        self._next_ns = 0
        self._last = [0, 0, 0]

    def totals(self, family: Family, now: int) -> list[int]:
        """Run-queue, off-CPU and CPU time since birth, ns, summed over threads.

        Args:
            family: the threads to read.
            now: CLOCK_MONOTONIC, ns.
        """
        if now < self._next_ns:
            return self._last
        began = time.monotonic_ns()
        after_end = self._read(family.threads, now)
        words = b"".join([thread.raw for thread in family.threads]).split()
        ran = sum(map(int, words[0::3]))
        runqueue = family.ended_runqueue_ns + sum(map(int, words[1::3]))
        alive = len(family.threads) * now - family.started_ns - after_end
        totals = (runqueue, family.ended_offcpu_ns + alive - ran, family.ended_cpu_ns + ran)
        self._last = list(map(max, totals, self._last))
        ended = time.monotonic_ns()
        self._next_ns = ended + REST * (ended - began)
        return self._last

    def _read(self, threads: tuple[ThreadSchedstatFile, ...], now: int) -> int:
        """Reads all threads; returns the time, ns, that ended ones have not lived until `now`."""
        after_end = 0
        for thread in threads:
            try:
                thread.raw = os.pread(thread.fd, READ_SIZE, 0)
            except OSError:
                thread.end_ns = thread.end_ns or self._watch.seen_ns
                after_end += now - thread.end_ns
        self._watch.seen_ns = now
        return after_end


class OwnTime:
    """Scheduler times of the calling thread, and what the others of its process compute.

    Off-CPU time is wall time less CPU time by the clock, not by field 1 of `schedstat`: that one
    is brought up to date only at the timer tick while the thread runs.
    """

    def __init__(self, proc: Path) -> None:
        """Binds to the calling thread."""
        self._path = str(proc / "thread-self" / "schedstat")
        self._last = [0, 0, 0]
        self._schedstat: ProcFile | None = None
        self._bind()
        self.has_runqueue = self._schedstat is not None

    def totals(self) -> list[int]:
        """Run-queue (0 without `has_runqueue`) and off-CPU time, and others' CPU time, ns.

        All since the start.
        """
        if threading.get_ident() != self._ident:
            self._bind()  # training has moved to another thread: go on from the same totals
        now = zip(self._clocks(), self._base, strict=True)
        self._last = list(map(max, self._last, (clock - base for clock, base in now)))
        return self._last

    def close(self) -> None:
        """Closes the descriptor."""
        if self._schedstat is not None:
            self._schedstat.close()

    def _bind(self) -> None:
        self.close()
        self._ident = threading.get_ident()
        self._schedstat = open_schedstat(self._path)
        clocks = zip(self._clocks(), self._last, strict=True)
        self._base = [clock - last for clock, last in clocks]

    def _clocks(self) -> tuple[int, int, int]:
        queued, now, own = self._runqueue_ns(), time.monotonic_ns(), time.thread_time_ns()
        return queued, now - own, time.process_time_ns() - own

    def _runqueue_ns(self) -> int:
        if self._schedstat is None:
            return 0
        return int(os.pread(self._schedstat.fd, READ_SIZE, 0).split()[1])


def open_schedstat(path: str) -> ProcFile | None:
    """A kept `schedstat`; None where the kernel has none, or keeps no times and shows zeros."""
    kept = keep(Path(path))
    if kept is not None and kept.raw.split() == [b"0", b"0", b"0"]:
        kept.close()
        return None
    return kept


class Pressure:
    """Pressure stall information of the whole machine.

    Making the text sums over all CPUs under a lock, so a machine with many of them needs long for
    it. Then it is read less often, and a short step may show the pressure of its neighbours.
    """

    def __init__(self, proc: Path) -> None:
        """Opens what there is: PSI can be compiled out, or off until booted with `psi=1`."""
        kept = {kind: keep(proc / "pressure" / kind) for kind in ("cpu", "io", "memory")}
        self._files = [file for file in kept.values() if file is not None]
        self.names = tuple(f"pressure/{k}_ns" for k, file in kept.items() if file is not None)
        self._totals = [0] * len(self._files)
        self._next_ns = 0

    def totals(self, now: int) -> list[int]:
        """Time with some task stalled since boot, ns, in the order of `names`."""
        if now >= self._next_ns:
            began = time.thread_time_ns()  # what it takes, not what others take meanwhile
            raws = [os.pread(file.fd, READ_SIZE, 0) for file in self._files]
            self._totals = [number_behind(b"total=", raw) * 1000 for raw in raws]  # of `some`, us
            self._next_ns = now + REST * (time.thread_time_ns() - began)
        return self._totals

    def close(self) -> None:
        """Closes the descriptors."""
        for file in self._files:
            file.close()
