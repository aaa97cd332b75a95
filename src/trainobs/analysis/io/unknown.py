"""What a run read or wrote of files that the numbers of `analysis.io.files` lack, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from trainobs.analysis.io.data_reads import has_libaio
from trainobs.analysis.stored import lacking
from trainobs.core.abi import FileClass, Op
from trainobs.core.coverage import IO_URING
from trainobs.core.records import SETUP
from trainobs.core.text import counted
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import IO, IO_CACHE, IO_PEERS, IO_SPREAD

_OF_DEVICES = "requests"  # losses that take nothing from what is known of calls


def said_of_maps(rank: RankLog, maps: Mapping[int, tuple[int, int]]) -> list[str]:
    """What went through mappings.

    Args:
        rank: whose files they are.
        maps: class of which files are mapped -> how often they were, and faults as in `Op.FAULT`.
    """
    said = []
    if FileClass.DATA in maps:
        count, faults = maps[FileClass.DATA]
        said.append(
            f"training data is mapped ({counted(count, 'new mapping')}, {counted(faults, 'fault')} "
            "that fault-around did not serve): reads of a mapping make no calls"
        )
    if rank.cells()["count"][Op.MAP_WRITE, FileClass.CHECKPOINT].sum():
        said.append("checkpoints are mapped: what is written through a mapping makes no calls")
    return said


def _sees(run: RunLog) -> bool:
    """Whether reads of io_uring were seen."""
    return bool(run.info.get("capabilities", {}).get(IO_URING) == "on")


def reads_unseen(run: RunLog, rank: RankLog) -> bool:
    """Whether reads were made that nobody saw."""
    calls = rank.cells()["count"]
    return bool(calls[Op.AIO].sum() or (calls[Op.URING_ENTER].sum() and not _sees(run)))


def unseen(run: RunLog, rank: RankLog) -> list[str]:
    """Ways to read and write that the kernel side did not see, though they were used."""
    calls = rank.cells()["count"]
    said = []
    if has_libaio(rank):
        said.append("libaio was used: its reads and writes are not seen")
    if calls[Op.URING_ENTER].sum():
        what = "writes are not among these" if _sees(run) else "reads and writes are not seen here"
        said.append(f"io_uring was used: its {what}")
    losses = (run.info.get("summary") or {}).get("losses") or {}
    lost = sum(count for cause, count in losses.items() if cause != _OF_DEVICES)
    if lost:
        said.append(f"{counted(lost, 'event')} that the probes lost")
    return said


def left_out(
    run: RunLog,
    rank: RankLog,
    table: Mapping[str, npt.NDArray[Any]],
    are_classes: npt.NDArray[np.bool_],
) -> list[str]:
    """What is in the sums alone, or in nothing.

    Args:
        run: the log of a run.
        rank: the part of it that is told of.
        table: of `IO`.
        are_classes: which of its rows are sums of a class.
    """
    said = []
    if any(lacking(run, rank, one) for one in (IO, IO_SPREAD, IO_CACHE, IO_PEERS)):
        said.append("files of the run log that are gone, cannot be read, or are another run's")
    unlisted = int(table["unlisted_count"][are_classes].sum())
    if unlisted:
        said.append(
            f"the files of {counted(unlisted, 'call')}, for which there was no room; the sums have "
            "these calls, and their bytes may be new or not"
        )
    if not run.info.get("summary"):
        said.append("what was read since the last epoch that was over: the run goes on, or died")
    else:
        trained = np.unique(rank.epoch()[rank.step() != SETUP])
        silent = np.setdiff1d(trained, table["epoch"]).tolist()
        if silent:
            first = ", ".join(map(str, silent[:5])) + (", ..." if len(silent) > 5 else "")
            said.append(f"epochs without a record: {first}; nothing was read, or it was lost")
    return said
