"""Where what was read of training data is unknown in a run log: see `core.unnamed_reads`."""

from __future__ import annotations

import numpy as np

from trainobs.core.abi import FileClass
from trainobs.core.records import DATA_IS_NAMED, SETUP
from trainobs.core.text import size
from trainobs.core.unnamed_reads import METRICS_OF_DATA, unnamed_in
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import KERNEL

OF_DATA = tuple(metric.name for metric in METRICS_OF_DATA)
"""Metrics that are then unknown."""

READ_FOR_A_BATCH = ("read_bytes", "read_count")
"""Columns of the table of batches that are, too."""


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
    steps = int((rank.step() != SETUP).sum())
    waited = bool(np.isfinite(rank.metric("loader/wait_ns")).any())
    return unnamed_in(rank.cells([SETUP])["bytes"], steps, named=named, waited=waited)


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
    read = f"the run read {size(unnamed)} of files that nobody named"
    return f"{read}; give {do}"
