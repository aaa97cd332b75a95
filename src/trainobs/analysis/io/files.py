"""What a run read and wrote of files, by class, epoch and file: numbers from its tables `io*`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypedDict, cast

import numpy as np
import numpy.typing as npt

from trainobs.analysis.io.peers import PeerBytes, peers_of, peers_unknown
from trainobs.analysis.io.unknown import left_out, reads_unseen, said_of_maps, unseen
from trainobs.analysis.io.unnamed_reads import data_is_named, told_of
from trainobs.analysis.ranks.collectives import Collectives, collectives_of
from trainobs.core.abi import ACCESS, FileClass, FileOp, Op
from trainobs.core.file_rows import SpreadKind
from trainobs.core.records import SETUP
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import IO, IO_CACHE, IO_SPREAD

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


SizeBucket = TypedDict("SizeBucket", {"from": int, "count": int})
"""What has `from` bytes (or opens) up to twice as many, and how many these are."""

Moved = TypedDict(
    "Moved",
    {
        "op": str,
        "class": str,
        "count": int,
        "bytes": int,
        "ns": int | None,
        "open_count": int,
        "first": float | None,
        "consecutive": float | None,
        "forward": float | None,
        "backward": float | None,
        "aligned": float | None,
        "times_least": float | None,
        "times_most": float | None,
    },
)
"""Sums of one operation on files, and what follows from them; None where unknown.

* All columns of `COUNTED` are there. `ns` is None where the files have reads by io_uring, which
  take no call's time.
* `first`, `consecutive`, `forward`, `backward`: shares of the calls whose position is known, by how
  each lies to the one before by the same open file: there was none, it began where that had ended,
  further on, before that.
* `aligned`: share of all calls that began at a multiple of a page; None where more than one of a
  hundred may have, and does not tell.
* `times_least`, `times_most`: how often a byte was moved in an epoch, of those that were; None
  where bytes may have been moved past all calls. No call moves a byte twice.
"""


class MovedOfClass(Moved):
    """Of a class of files in the whole run, of which files count anew in each epoch."""

    call_bytes: list[SizeBucket]
    file_bytes: list[SizeBucket]
    file_opens: list[SizeBucket]


class MovedOfFile(Moved):
    """Of one file.

    Attributes:
        file, inode, size: its name, inode and bytes.
        epochs: how many epochs it is of: those in which it was among the largest of its class.
    """

    file: str
    inode: int
    size: int
    epochs: int


class FileCalls(TypedDict):
    """Calls about files."""

    count: int
    failed_count: int
    ns: int


class InMemory(TypedDict):
    """What the page cache held of files of the data set, which may be all."""

    file_count: int
    is_all: bool
    sampled_count: int
    sampled_bytes: int
    cached_bytes: int


class FilesOfEpoch(TypedDict):
    """Files in an epoch.

    Attributes:
        epoch: its number.
        seconds: in its steps; None where unknown.
        is_ahead: whether workers read ahead for it, and no step of it was trained.
        classes: what was moved of each class of files.
        calls: operation -> calls about files, of which no class is known.
        cache: what the page cache held as it was over; None where unknown.
    """

    epoch: int
    seconds: float | None
    is_ahead: bool
    classes: list[Moved]
    calls: dict[str, FileCalls]
    cache: InMemory | None


class _State(TypedDict):
    state: str


class FilesRead(_State, total=False):
    """What a run did with files and peers.

    Attributes:
        state: "on", or why nothing is known; then nothing else is there.
        data_is_named, data_is_mapped: whether the user said where training data lies; whether
            some of it was read through mappings.
        unnamed_bytes: see `analysis.io.unnamed_reads.unnamed_bytes`.
        reads_unseen: whether reads were made that nobody saw: those that were are the least.
        unknown: what was read or written and is in none of these numbers, in words.
        classes, epochs: those with most bytes first; in order.
        files: those of which most bytes were moved, by name and inode; without the semaphores and
            the shared tensors of loaders.
        peers, collectives: see there.
    """

    rank: int
    data_is_named: bool
    data_is_mapped: bool
    unnamed_bytes: int | None
    reads_unseen: bool
    unknown: list[str]
    classes: list[MovedOfClass]
    epochs: list[FilesOfEpoch]
    files: list[MovedOfFile]
    peers: list[PeerBytes] | None
    collectives: Collectives | None


def files_read(run: RunLog, rank: RankLog, unnamed: int | None) -> FilesRead | None:
    """What was read and written of files; None for a run that was not to count that.

    Args:
        run: the log of a run.
        rank: the part of it that is told of.
        unnamed: what `unnamed_bytes` returns of it.

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
    not_seen = unseen(run, rank)
    maps = _mapped(rank, table, ~names)
    untimed = np.flatnonzero(rank.cells()["count"][Op.URING_READ].sum(axis=1)).tolist()
    hidden = set(maps) if unnamed is None else {FileClass.DATA, *maps}
    doubts = _Doubts(set(FileClass) if not_seen else hidden, untimed)
    peers = peers_of(run, rank)
    attached = bool(run.info.get("settings", {}).get("attached"))
    named = data_is_named(run)
    why = "" if unnamed is None else told_of(unnamed, attached=attached, named=named)
    maybe = [f"training data: {why}"] if why else []
    rest = [*left_out(run, rank, table, ~names), *peers_unknown(run, rank, peers)]
    return {
        "state": state,
        "rank": rank.rank,
        "data_is_named": named,
        "data_is_mapped": FileClass.DATA in maps,
        "unnamed_bytes": unnamed,
        "reads_unseen": reads_unseen(run, rank),
        "unknown": [*maybe, *said_of_maps(rank, maps), *not_seen, *rest],
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
    """Sums over some rows, and what follows from them: `Moved` without its names."""
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
) -> list[MovedOfClass]:
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
    return cast("list[MovedOfClass]", _largest_first(found))


def _largest_first(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda one: -one["bytes"])


def _named(op: int, file_class: int) -> dict[str, str]:
    return {"op": FileOp(op).name.lower(), "class": FileClass(file_class).name.lower()}


def _histogram(spread: Columns, op: int, file_class: int, of: int) -> list[SizeBucket]:
    own = (spread["op"] == op) & (spread["class"] == file_class) & (spread["of"] == of)
    counts = np.bincount(spread["bucket"][own], spread["count"][own]).astype(np.int64)
    return [{"from": 1 << int(b), "count": int(counts[b])} for b in np.flatnonzero(counts)]


def _epochs(
    rank: RankLog, table: Columns, are_classes: npt.NDArray[np.bool_], doubts: _Doubts
) -> list[FilesOfEpoch]:
    taken = _seconds(rank)
    held = _held(rank)
    found: list[FilesOfEpoch] = []
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
                "classes": cast("list[Moved]", _largest_first(classes)),
                "calls": _calls(table, of),
                "cache": held.get(epoch),
            }
        )
    return found


def _calls(table: Columns, of: npt.NDArray[np.bool_]) -> dict[str, FileCalls]:
    """Calls about files, which no class is known of."""
    found: dict[str, FileCalls] = {}
    for op in (FileOp.STAT, FileOp.LIST):
        own = of & (table["op"] == op)
        count, failed, ns = (
            int(table[name][own].sum()) for name in ("count", "failed_count", "ns")
        )
        found[op.name.lower()] = {"count": count, "failed_count": failed, "ns": ns}
    return found


def _seconds(rank: RankLog) -> dict[int, float]:
    """Time of the steps of each epoch."""
    training = rank.step() != SETUP
    epochs, durations = rank.epoch()[training], rank.metric("step/duration_ns")[training]
    known = np.isfinite(durations)
    return {
        epoch: float(durations[known & (epochs == epoch)].sum() / 1e9)
        for epoch in np.unique(epochs).tolist()
    }


def _held(rank: RankLog) -> dict[int, InMemory]:
    """What the page cache held, by the epoch that was over; the last look counts."""
    names = tuple(InMemory.__annotations__)
    table = rank.columns(IO_CACHE, ("epoch", *names))
    found = {
        int(epoch): {name: table[name][row].item() for name in names}
        for row, epoch in enumerate(table["epoch"])
    }
    return cast("dict[int, InMemory]", found)


def _files(
    rank: RankLog, table: Columns, are_files: npt.NDArray[np.bool_], doubts: _Doubts
) -> list[MovedOfFile]:
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
    return cast("list[MovedOfFile]", _largest_first(found)[:LARGEST])


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
