"""What threads and processes of a run read of files that may be training data, and may not.

What loader workers read is training data, and so is what the training thread reads as it waits for
its loader. Of what other threads and processes read nobody knows that: compilers and loggers read,
too. Nor is it known of a mapped file that may be code, or is open for writing, whoever touches it.
Where they have read about as much as is known to be data, numbers of data are no numbers. Nor are
they where nothing was read of what somebody named: a directory of links to files elsewhere, say,
or a block device, which has the class of the file system that it has its name on: shared memory.
"""

from __future__ import annotations

from trainobs.core.abi import FileClass, Op, Role
from trainobs.core.catalogue import STEP_METRICS
from trainobs.core.metrics import Cells
from trainobs.core.records import DATA_IS_NAMED, SETUP
from trainobs.core.text import size
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import KERNEL

_RIVALS = 0.5
"""Share of what is known to be data, from which on what is not may be most of it."""

_LEAST, _LEAST_IN_A_STEP = 1 << 20, 1 << 10
"""Bytes in all, and in a step, below which they are no data set: loggers read as well."""


def _is_of_data(sum_: Cells) -> bool:
    return sum_.classes == (FileClass.DATA,) and not sum_.phases  # which stand there, too


OF_DATA = tuple(
    metric.name
    for metric in STEP_METRICS
    if metric.formula and any(map(_is_of_data, metric.formula.sums))
)
"""Metrics that are then unknown."""

_READS = [Op.READ, Op.URING_READ]


def data_is_named(run: RunLog) -> bool:
    """Whether somebody has named the training data."""
    return bool(run.info.get("settings", {}).get(DATA_IS_NAMED))


def unnamed_bytes(run: RunLog, rank: RankLog) -> int | None:
    """Bytes read in steps that may be data, where that makes the numbers of data doubtful.

    Args:
        run: the log of a run.
        rank: the part of it that is told of.
    """
    named = data_is_named(run)
    if named and (
        # Of what is not at hand some may have been data.
        run.is_part
        or rank.files.unreadable(KERNEL)
        or rank.cells()["count"][:, FileClass.DATA].any()
    ):
        return None
    moved = rank.cells([SETUP])["bytes"]
    data = int(moved[[*_READS, Op.MMAP, Op.FAULT_FILL], FileClass.DATA].sum())
    others = moved[[*_READS, Op.FAULT_FILL], FileClass.OTHER][:, [Role.THREAD, Role.CHILD]]
    devices = moved[_READS, FileClass.SHM][:, [Role.THREAD, Role.CHILD, Role.WORKER]]
    unnamed = int(others.sum() + moved[Op.UNNAMED_FILL].sum() + devices.sum())
    if named:
        unnamed += int(moved[_READS, FileClass.OTHER][:, [Role.MAIN, Role.WORKER]].sum())
        unnamed += int(moved[_READS, FileClass.SHM][:, Role.MAIN].sum())
    steps = int((rank.step() != SETUP).sum())
    least = max(_LEAST, _LEAST_IN_A_STEP * steps, _RIVALS * data)
    return unnamed if unnamed >= least else None


def told_of(unnamed: float, *, attached: bool, named: bool) -> str:
    """Why numbers of data are unknown, and what to do.

    Args:
        unnamed: bytes that were read.
        attached: whether the run was observed from outside.
        named: whether somebody named the training data.
    """
    do = "`--data`" if attached else "`data_roots`"
    if named:
        read = f"nothing in {do} was seen read, and {size(unnamed)} of other files were"
        do = "where links in it lead elsewhere, name that"
        return f"{read}; {do}; block devices are not told apart"
    read = f"threads or processes of the run read {size(unnamed)} of files that nobody named"
    return f"{read}; give {do}"
