"""The system calls of a process that is observed from outside, in their order."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import CALL_NUMBERS, CALLS, SEEN_CALLS
from trainobs.probes.attached_backend import seen_object
from trainobs.probes.map_entries import mapping
from trainobs.probes.shared import SharedProbes, unable

Words = npt.NDArray[np.uint64]

_SLOT = 0
_PROGRAM = "tobs_called"


class SystemCalls:
    """What one thread of a process asks of the kernel, from construction until `stop`.

    Args:
        tgid: the process, as this one sees it.
        tid: its thread, as it sees itself.

    Attributes:
        is_there: whether the process has that thread.
        lost_count: calls that were overwritten before they were read.

    Raises:
        ProbeError: the kernel side cannot run.
    """

    def __init__(self, tgid: int, tid: int) -> None:
        self.lost_count = 0
        self._read_count = 0
        with ExitStack() as parts:
            probes = SharedProbes(())
            parts.callback(probes.stop)
            programs = seen_object(probes, (_PROGRAM,))
            parts.callback(programs.close)
            try:
                probes.open(_SLOT).close()  # of a session only who is followed is needed
                parts.callback(probes.close, _SLOT)
                memory = mapping(programs.map_fd("seen_calls"), SEEN_CALLS.itemsize)
            except OSError as error:
                raise unable(error) from error
            self._calls = np.frombuffer(memory, SEEN_CALLS, 1)
            programs.attach(_PROGRAM)
            self.is_there = probes.adopt(_SLOT, tgid, tid)
            self._parts = parts.pop_all()

    def read(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int16]]:
        """The calls since the last time, oldest first; of too many, the newest.

        Returns:
            When each began, CLOCK_MONOTONIC in ns, to half a microsecond; and its number. Of the
            same shape (n,).
        """
        count = self._count()
        begin = max(self._read_count, count - CALLS)
        words: Words = self._calls[0]["calls"][np.arange(begin, count) % CALLS]
        # What was overwritten meanwhile, or stands where the next one is written just now.
        first = min(max(begin, self._count() + 1 - CALLS), count)
        self.lost_count += first - self._read_count
        words = words[first - begin :]
        self._read_count = count
        number = words % CALL_NUMBERS
        return (words - number).astype(np.int64), number.astype(np.int16)

    def stop(self) -> None:
        """Take everything out of the kernel. May be called twice."""
        self._parts.close()

    def _count(self) -> int:
        return int(self._calls[0]["count"])
