"""What threads and processes of a run read of files that may be training data, and may not.

What loader workers read is training data, and so is what the training thread reads as it waits for
its loader. Of what other threads and processes read nobody knows that: compilers and loggers read,
too. Nor is it known of what the training thread reads in a run of which no wait for a loader is
known: it may have a loader that is none of torch's, or none at all. Nor is it known of a mapped
file that may be code, or is open for writing, whoever touches it.
Where they have read about as much as is known to be data, numbers of data are no numbers. Nor are
they where nothing was read of what somebody named: a directory of links to files elsewhere, say,
or a block device, which has the class of the file system that it has its name on: shared memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import FileClass, Op, Role
from trainobs.core.catalogue import STEP_METRICS
from trainobs.core.metrics import Cells

_RIVALS = 0.5
"""Share of what is known to be data, from which on what is not may be most of it."""

_LEAST, _LEAST_IN_A_STEP = 1 << 20, 1 << 10
"""Bytes in all, and in a step, below which they are no data set: loggers read as well."""

_READS = [Op.READ, Op.URING_READ]


def _is_of_data(sum_: Cells) -> bool:
    return sum_.classes == (FileClass.DATA,) and not sum_.phases  # which stand there, too


METRICS_OF_DATA = tuple(
    metric
    for metric in STEP_METRICS
    if metric.formula and any(map(_is_of_data, metric.formula.sums))
)
"""Metrics that are then unknown."""


def unnamed_in(
    moved: npt.NDArray[np.integer[Any]], steps: int, *, named: bool, waited: bool
) -> int | None:
    """Bytes read that may be of data, where that makes the numbers of data doubtful; else None.

    Args:
        moved: bytes of the kernel's cells, summed over steps; shape (op, class, role).
        steps: how many these are.
        named: whether somebody named the training data. Then to be asked only where nothing of it
            was read.
        waited: whether it is known of any step how long it waited for its loader.
    """
    data = int(moved[[*_READS, Op.MMAP, Op.FAULT_FILL], FileClass.DATA].sum())
    others = moved[[*_READS, Op.FAULT_FILL], FileClass.OTHER][:, [Role.THREAD, Role.CHILD]]
    devices = moved[_READS, FileClass.SHM][:, [Role.THREAD, Role.CHILD, Role.WORKER]]
    unnamed = int(others.sum() + moved[Op.UNNAMED_FILL].sum() + devices.sum())
    if named or not waited:
        unnamed += int(moved[_READS, FileClass.OTHER][:, [Role.MAIN, Role.WORKER]].sum())
    if not waited:
        unnamed += int(moved[Op.FAULT_FILL, FileClass.OTHER, Role.MAIN])  # as by np.memmap
    if named:
        unnamed += int(moved[_READS, FileClass.SHM][:, Role.MAIN].sum())
    return unnamed if unnamed >= max(_LEAST, _LEAST_IN_A_STEP * steps, _RIVALS * data) else None
