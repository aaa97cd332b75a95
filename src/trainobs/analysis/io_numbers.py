"""What a run read and wrote of files, by class, epoch and file: numbers from its tables `io*`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainobs.analysis.collectives import collectives_of
from trainobs.analysis.data_reads import has_libaio
from trainobs.analysis.peer_numbers import peers_of, peers_unknown
from trainobs.analysis.stored import lacking
from trainobs.analysis.unnamed_reads import data_is_named, told_of
from trainobs.core.abi import ACCESS, FileClass, FileOp, Op
from trainobs.core.coverage import IO_URING
from trainobs.core.file_rows import SpreadKind
from trainobs.core.records import SETUP
from trainobs.core.text import counted
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import IO, IO_CACHE, IO_PEERS, IO_SPREAD

Columns = Mapping[str, npt.NDArray[Any]]

COUNTED = (*(ACCESS.names or ()), "file_count", "unlisted_count")
"""Columns that are sums."""

ORDERS = ("first", "consecutive", "forward", "backward")
"""How a call may lie to the one before by the same open file."""

LARGEST = 20
"""Files that are told of, of those with a row of their own."""

_MOVES = (FileOp.READ, FileOp.WRITE)
_WHICH = ("op", "device", "inode", "epoch")
_STATE = "files"
_OF_DEVICES = "requests"  # losses that take nothing from what is known of calls


def files_read(run: RunLog, rank: RankLog, unnamed: int | None) -> dict[str, Any] | None:
    """What was read and written of files; None for a run that was not to count that.

    Args:
        run: the log of a run.
        rank: the part of it that is told of.
        unnamed: what `unnamed_bytes` returns of it.

    Returns:
        * state: "on", or why nothing is known; then nothing else is there.
        * data_is_named, data_is_mapped: whether the user said where training data lies; whether
          some of it was read through mappings.
        * unnamed_bytes: see `analysis.unnamed_reads.unnamed_bytes`.
        * reads_unseen: whether reads were made that nobody saw: those that were are the least.
        * unknown: what was read or written and is in none of these numbers, in words.
        * classes: for each `op` and `class` what `_numbers` returns of the whole run, and
          `call_bytes`, `file_bytes` and `file_opens`: what has `from` bytes (or opens) up to twice
          as many, and their `count`. Files count anew in each epoch.
        * epochs: for each its number, `seconds` in its steps, None where unknown; `is_ahead`,
          whether workers read ahead for it, and no step of it was trained; `classes` as above,
          without histograms; `calls`: op -> `count`, `failed_count`, `ns` of calls about files;
          `cache`: None, or what the page cache held of the data set as it was over.
        * files: those of which most bytes were moved, by name and `inode`, with the numbers of the
          epochs in which they were among the largest of their class, and `epochs`, how many these
          were; without the semaphores and the shared tensors of loaders.
        * peers: see `analysis.peer_numbers.peers_of`.
        * collectives: see `analysis.collectives.collectives_of`.

    Raises:
        RunLogError: a file is damaged.
    """
    state = run.info.get("capabilities", {}).get(_STATE)
    if state is None:
        return None
    if state != "on":
        return {"state": state}
    table = rank.columns(IO, ("epoch", "op", "class", "inode", "device", "file_bytes", *COUNTED))
    names = np.array([name is not None for name in rank.texts(IO, "file")], bool)
    unseen = _unseen(run, rank)
    maps = _mapped(rank, table, ~names)
    untimed = np.flatnonzero(rank.cells()["count"][Op.URING_READ].sum(axis=1)).tolist()
    hidden = set(maps) if unnamed is None else {FileClass.DATA, *maps}
    doubts = _Doubts(set(FileClass) if unseen else hidden, untimed)
    peers = peers_of(run, rank)
    attached = bool(run.info.get("settings", {}).get("attached"))
    named = data_is_named(run)
    why = "" if unnamed is None else told_of(unnamed, attached=attached, named=named)
    maybe = [f"training data: {why}"] if why else []
    left_out = [*_left_out(run, rank, table, ~names), *peers_unknown(run, rank, peers)]
    return {
        "state": state,
        "rank": rank.rank,
        "data_is_named": named,
        "data_is_mapped": FileClass.DATA in maps,
        "unnamed_bytes": unnamed,
        "reads_unseen": _reads_unseen(run, rank),
        "unknown": [*maybe, *_said_of_maps(rank, maps), *unseen, *left_out],
        "classes": _classes(table, ~names, rank.columns(IO_SPREAD, _SPREAD), doubts),
        "epochs": _epochs(rank, table, ~names, doubts),
        "files": _files(rank, table, names, doubts),
        "peers": peers,
        "collectives": collectives_of(rank),
    }


_SPREAD = ("op", "class", "of", "bucket", "count")


class _Doubts(NamedTuple):
    """What is not known of some classes of files.

    Attributes:
        hidden: classes of which bytes may have been moved past all calls.
        untimed: classes of which bytes were read by io_uring, whose requests take no call's time.
    """

    hidden: Collection[int]
    untimed: Collection[int]


def _numbers(table: Columns, rows: npt.NDArray[np.intp], doubts: _Doubts) -> dict[str, Any]:
    """Sums over some rows, and what follows from them.

    * `first`, `consecutive`, `forward`, `backward`: shares of the calls whose position is known, by
      how each lies to the one before by the same open file: there was none, it began where that had
      ended, further on, before that;
    * `aligned`: share of all calls that began at a multiple of a page; None where more than one of
      a hundred may have, and does not tell;
    * `times_least`, `times_most`: how often a byte was moved in an epoch, of those that were; None
      where it is not known, and both where the rows have a class of `hidden`. No call moves a byte
      twice;
    * `ns`: None where the rows have reads of a class of `untimed`.
    """
    sums = {name: int(table[name][rows].sum()) for name in COUNTED}
    placed = sum(sums[f"{how}_count"] for how in ORDERS)
    shares = {how: sums[f"{how}_count"] / placed if placed else None for how in ORDERS}
    moved, told = sums["bytes"], sums["bytes"] - sums["untold_bytes"]
    least, most = sums["unique_least"], min(sums["unique_most"], told) + sums["untold_bytes"]
    classes = table["class"][rows]
    is_known = most and not np.isin(classes, list(doubts.hidden)).any()
    is_read = table["op"][rows] == FileOp.READ
    is_timed = not (is_read & np.isin(classes, list(doubts.untimed))).any()
    return {
        **sums,
        "ns": sums["ns"] if is_timed else None,
        **shares,
        "aligned": _aligned(sums, sums["count"] - placed),
        "times_least": moved / most if is_known else None,
        "times_most": min(moved / least, sums["count"]) if is_known and least else None,
    }


def _aligned(sums: Mapping[str, int], unplaced: int) -> float | None:
    count, aligned = sums["count"], sums["aligned_count"]
    if not sums["untold_bytes"]:
        unplaced = 0  # only the call before is not known
    if not count or min(unplaced, count - aligned) > count / 100:
        return None
    return aligned / count


def _classes(
    table: Columns, are_classes: npt.NDArray[np.bool_], spread: Columns, doubts: _Doubts
) -> list[dict[str, Any]]:
    found = []
    for op in _MOVES:
        for file_class in FileClass:
            of = (table["op"] == op) & (table["class"] == file_class)
            rows = np.flatnonzero(of & are_classes)
            if len(rows):
                histograms = {
                    kind.name.lower(): _histogram(spread, op, file_class, kind)
                    for kind in SpreadKind
                }
                found.append(
                    {**_named(op, file_class), **_numbers(table, rows, doubts), **histograms}
                )
    return sorted(found, key=lambda one: -one["bytes"])


def _named(op: int, file_class: int) -> dict[str, str]:
    return {"op": FileOp(op).name.lower(), "class": FileClass(file_class).name.lower()}


def _histogram(spread: Columns, op: int, file_class: int, of: int) -> list[dict[str, int]]:
    own = (spread["op"] == op) & (spread["class"] == file_class) & (spread["of"] == of)
    counts = np.bincount(spread["bucket"][own], spread["count"][own]).astype(np.int64)
    return [{"from": 1 << int(b), "count": int(counts[b])} for b in np.flatnonzero(counts)]


def _epochs(
    rank: RankLog, table: Columns, are_classes: npt.NDArray[np.bool_], doubts: _Doubts
) -> list[dict[str, Any]]:
    taken = _seconds(rank)
    held = _held(rank)
    found = []
    for epoch in np.unique(table["epoch"]).tolist():
        of = are_classes & (table["epoch"] == epoch)
        rows = np.flatnonzero(of & np.isin(table["op"], _MOVES))
        classes = [
            {**_named(table["op"][r], table["class"][r]), **_numbers(table, np.array([r]), doubts)}
            for r in rows.tolist()
        ]
        found.append(
            {
                "epoch": epoch,
                "seconds": taken.get(epoch),
                "is_ahead": bool(taken) and epoch > max(taken),
                "classes": sorted(classes, key=lambda one: -one["bytes"]),
                "calls": _calls(table, of),
                "cache": held.get(epoch),
            }
        )
    return found


def _calls(table: Columns, of: npt.NDArray[np.bool_]) -> dict[str, dict[str, int]]:
    """Calls about files, which no class is known of."""
    names = ("count", "failed_count", "ns")
    return {
        op.name.lower(): {name: int(table[name][of & (table["op"] == op)].sum()) for name in names}
        for op in (FileOp.STAT, FileOp.LIST)
    }


def _seconds(rank: RankLog) -> dict[int, float]:
    """Time of the steps of each epoch."""
    training = rank.step() != SETUP
    epochs, durations = rank.epoch()[training], rank.metric("step/duration_ns")[training]
    known = np.isfinite(durations)
    return {
        epoch: float(durations[known & (epochs == epoch)].sum() / 1e9)
        for epoch in np.unique(epochs).tolist()
    }


def _held(rank: RankLog) -> dict[int, dict[str, Any]]:
    """What the page cache held, by the epoch that was over; the last look counts."""
    names = ("file_count", "is_all", "sampled_count", "sampled_bytes", "cached_bytes")
    table = rank.columns(IO_CACHE, ("epoch", *names))
    return {
        int(epoch): {name: table[name][row].item() for name in names}
        for row, epoch in enumerate(table["epoch"])
    }


def _files(
    rank: RankLog, table: Columns, are_files: npt.NDArray[np.bool_], doubts: _Doubts
) -> list[dict[str, Any]]:
    names = rank.texts(IO, "file")
    by_file: dict[tuple[object, ...], list[int]] = {}
    seen: Counter[tuple[object, ...]] = Counter()
    pass_through = np.array([_is_passing(name) for name in names], bool)
    are_shown = are_files & ~(pass_through & (table["class"] == FileClass.SHM))
    for row in np.flatnonzero(are_shown).tolist():
        # An inode's number is another file's once its own is deleted: files of one epoch are apart.
        op, device, inode, epoch = (int(table[name][row]) for name in _WHICH)
        which = (op, device, inode, names[row])
        seen[which, epoch] += 1
        by_file.setdefault((*which, seen[which, epoch]), []).append(row)
    found = [
        {
            "file": names[rows[-1]],
            **_named(table["op"][rows[-1]], table["class"][rows[-1]]),
            "inode": int(table["inode"][rows[-1]]),
            "size": int(table["file_bytes"][rows[-1]]),
            "epochs": len(rows),  # one of each
            **_numbers(table, np.array(rows), doubts),
        }
        for rows in by_file.values()
    ]
    return sorted(found, key=lambda one: -one["bytes"])[:LARGEST]


def _is_passing(name: str | None) -> bool:
    """Whether a file in shared memory is a semaphore, or has tensors on the way between processes.

    Shared memory is a mount of its own (`/dev/shm`), so that its name is not above them.
    """
    return bool(name and name.startswith(("/sem.", "/torch_")))


def _mapped(
    rank: RankLog, table: Columns, are_classes: npt.NDArray[np.bool_]
) -> dict[int, tuple[int, int]]:
    """Classes of which files are mapped -> how often they were, and faults as in `Op.FAULT`.

    A mapping may be older than the run, and serves all epochs after the one that made it.
    """
    faults = rank.cells()["count"][Op.FAULT].sum(axis=1)
    found = {}
    for file_class in FileClass:
        rows = are_classes & (table["class"] == file_class)
        maps = int(table["mmap_count"][rows].sum())
        if maps or faults[file_class]:
            found[int(file_class)] = maps, int(faults[file_class])
    return found


def _said_of_maps(rank: RankLog, maps: Mapping[int, tuple[int, int]]) -> list[str]:
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


def _reads_unseen(run: RunLog, rank: RankLog) -> bool:
    calls = rank.cells()["count"]
    return bool(calls[Op.AIO].sum() or (calls[Op.URING_ENTER].sum() and not _sees(run)))


def _unseen(run: RunLog, rank: RankLog) -> list[str]:
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


def _left_out(
    run: RunLog, rank: RankLog, table: Columns, are_classes: npt.NDArray[np.bool_]
) -> list[str]:
    """What is in the sums alone, or in nothing."""
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
