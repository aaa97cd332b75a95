"""What of the kernel's counts is known, with the programs that run: missing is not zero.

Each operation rests on programs of the kernel side (`FEEDS`). A number that rests on one that does
not run is unknown, whatever the kernel's rows hold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import IntFlag
from functools import cached_property
from itertools import product
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import CELLS_SHAPE, FIELDS, FileClass, Op
from trainobs.core.cells import WORDS, StepCells

Programs = frozenset[str]

CALLS: Programs = frozenset({"tobs_sys_enter", "tobs_sys_exit"})
"""System calls: what is read, and of which class a file is."""

SCHEDULER: Programs = frozenset({"tobs_switch", "tobs_wakeup", "tobs_wakeup_new"})
BLOCK: Programs = frozenset({"tobs_blk_start", "tobs_blk_done"})
RECLAIM: Programs = frozenset(
    {"tobs_reclaim", "tobs_reclaimed", "tobs_cg_reclaim", "tobs_cg_freed"}
)
PAGES: Programs = frozenset({"tobs_cache_add"})
"""Pages that come into the page cache: of which file on overlayfs they are, and in which fault."""

IO_URING = "tobs_uring"
"""Without it nobody knows what rings read and write; while there is no ring, that is nothing."""


class Async(IntFlag):
    """Ways to read and write past the calls for it."""

    URING = 1
    AIO = 2  # io_submit, as libaio does: no program sees what it reads and writes


FEEDS: Mapping[Op, Programs] = {
    Op.READ: CALLS,
    Op.WRITE: CALLS,
    Op.FSYNC: CALLS,
    Op.OPEN: CALLS,
    Op.MMAP: CALLS,
    Op.URING_ENTER: CALLS,
    Op.URING_READ: CALLS | {IO_URING},
    Op.URING_WRITE: CALLS | {IO_URING},
    Op.DIRECT_READ: CALLS | {IO_URING},
    Op.CACHE_READ: CALLS | {IO_URING},
    Op.CACHE_MISS: CALLS | PAGES | {IO_URING},
    Op.DEMAND_MISS: CALLS | {"tobs_ra_wait"},
    Op.FAULT: frozenset({"tobs_fault"}),
    Op.FAULT_FILL: CALLS | PAGES,  # a page that no call asked for
    Op.BLOCK_READ: BLOCK,
    Op.BLOCK_WRITE: BLOCK | CALLS | PAGES,  # write-back is told by the class of the file
    Op.OFFCPU: SCHEDULER,
    Op.RUNQUEUE: SCHEDULER,
    Op.SEND: frozenset({"tobs_send"}),
    Op.RECEIVE: frozenset({"tobs_receive"}),
    Op.RECLAIM: RECLAIM,
    Op.AWAIT: SCHEDULER | {"tobs_await"},
    Op.ONCPU: SCHEDULER,
    Op.PHASE_OFF: SCHEDULER,
    Op.PHASE_SLEEP: SCHEDULER | {"tobs_await"},  # what is known to be waited for is left out
    Op.AIO: CALLS,
    Op.HINT: CALLS | PAGES,
    Op.MAP_WRITE: CALLS,
    Op.UNNAMED_FILL: CALLS | PAGES,
}
"""Operation -> programs without which its cells are wrong."""

CLASSED_BY: Mapping[Op, Programs] = {
    Op.FAULT: CALLS,
    Op.BLOCK_READ: CALLS | PAGES,  # or of a fault, where pages do not lead to their file
    Op.OFFCPU: CALLS,
    Op.RUNQUEUE: CALLS,
}
"""Operations whose class of file is that of a call: by the path that was opened, who reads it, in
which phase. Without these programs their sums over all classes are right, and no class is."""


FOR_GLOO = FEEDS[Op.AWAIT] | {"tobs_waking"}
"""Programs that tell how long the training thread slept for gloo."""


def feeds(op: Op, field: str, classes: Collection[FileClass] = ()) -> Programs:
    """Programs that a number rests on: a field of an operation, of some classes (empty: of all)."""
    slept = SCHEDULER if field == "wait_ns" else Programs()
    if op is Op.PHASE_OFF and field == "bytes":  # for Python's lock
        slept = FEEDS[Op.AWAIT]
    if op is Op.AWAIT and field == "bytes":
        slept = FOR_GLOO
    return FEEDS[op] | slept | (CLASSED_BY.get(op, Programs()) if classes else Programs())


class Coverage:
    """Which of the kernel's numbers are known.

    Args:
        status: program -> "on", or why it is off (`RunInfo.capabilities`).
    """

    EVERY_PROGRAM: ClassVar[Mapping[str, str]] = dict.fromkeys(
        sorted(Programs().union(*FEEDS.values(), FOR_GLOO)), "on"
    )

    def __init__(self, status: Mapping[str, str]) -> None:
        self._on = frozenset(name for name, state in status.items() if state == "on")

    @classmethod
    def whole(cls) -> Coverage:
        """With every program."""
        return cls(cls.EVERY_PROGRAM)

    def knows(self, programs: Programs) -> bool:
        """Whether what rests on some programs is known, at least while all I/O is by calls."""
        return self._on >= programs or self._on | {IO_URING} >= programs | CALLS

    def doubts(self, programs: Programs) -> Async:
        """Which ways of I/O make it unknown from the moment that they are used.

        That is what is read and written, and with io_submit also whose block requests are, since a
        direct request does not lead to its file.
        """
        by_aio = IO_URING in programs or programs >= BLOCK | CALLS
        by_ring = not self._on >= programs
        return (Async.AIO if by_aio else Async(0)) | (Async.URING if by_ring else Async(0))

    @cached_property
    def _known_words(self) -> npt.NDArray[np.bool_]:
        """Of each number in a row taken as a flat array of words, whether it is known."""
        return _words(self.knows).astype(np.bool_)

    @cached_property
    def _doubtful_words(self) -> npt.NDArray[np.uint8]:
        return _words(self.doubts)

    def known(self, cells: StepCells, used: npt.NDArray[np.uint8]) -> StepCells:
        """Cells without what is unknown.

        Args:
            cells: of n steps.
            used: of each step, which ways (`Async`) may have been used until then.
        """
        known, doubtful = self._known_words[cells.places], self._doubtful_words[cells.places]
        if (np.bitwise_or.reduce(used) & doubtful).any():
            values = np.where(used[:, None] & doubtful, np.uint64(0), cells.values)
            cells = StepCells(cells.places, values)
        return cells if known.all() else cells.only(known)

    def histograms(self, buckets: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """A copy of histograms, shape (op, class, role, BUCKETS), empty where unknown."""
        words = self._known_words.reshape(*CELLS_SHAPE, len(FIELDS))
        known: npt.NDArray[np.uint64] = buckets.copy()
        known[~words[..., FIELDS.index("ns")]] = 0
        return known

    def unknown_fields(self, cells: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.bool_]:
        """Of cells, by their place in a row, which fields are unknown; shape (n, fields)."""
        unknown: npt.NDArray[np.bool_] = ~self._known_words.reshape(-1, len(FIELDS))[cells]
        return unknown


def _words(holds: Callable[[Programs], int]) -> npt.NDArray[np.uint8]:
    words = np.zeros((*CELLS_SHAPE, len(FIELDS)), np.uint8)
    for op, (index, field) in product(Op, enumerate(FIELDS)):
        words[op, :, :, index] = holds(feeds(op, field, list(FileClass)))
    return words.reshape(WORDS)
