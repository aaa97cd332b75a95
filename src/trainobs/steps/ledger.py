"""The ledger of batches: which worker made what, for which step, and why the loop had to wait.

Two books are joined here. The kernel writes one entry for each batch that a loader makes: when, by
whom, and how much of that time its maker was on a CPU, waited for one, or slept for a device. The
training thread writes one entry for each batch that it gets: when, and which batch of which worker
that is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import BATCH, BATCHES, MAIN_WORKER, Phase
from trainobs.core.records import BATCH_ROW, UNKNOWN
from trainobs.steps.closed_step import ClosedStep

MAX_KEPT = 4096
"""Batches that wait to be fetched; of more, the oldest go to the record without their step."""

MAX_FOLLOWED = 4096
"""Passes whose batches are told: a loop may begin one in every step (`next(iter(loader))`)."""

MAX_FETCHES = 65_536
"""Fetches that wait for their step to close; of more, the oldest are dropped."""

SPLIT = ("loader/device_ns", "loader/cpu_wait_ns", "loader/compute_ns", "loader/sleep_ns")
"""The parts of `loader/wait_ns`, but for the last one."""

REST = "loader/handover_ns"
TURNOVER = "loader/start_stop_ns"

Columns = dict[str, npt.NDArray[np.float64]]
Rows = npt.NDArray[np.void]
Key = tuple[int, int, int, int]
"""Loader, pass over it, worker, and which batch of that worker in that pass."""

_TIMES = tuple(name.removeprefix("loader/") for name in SPLIT)
_READS = ("read_bytes", "read_count")
_SAME = (
    "number",
    "begin_ns",
    "end_ns",
    "read_bytes",
    "read_count",
    "read_ns",
    "slowest_ns",
    "received_bytes",
    "handed_bytes",
)


class KernelBatches(Protocol):
    """What the ledger reads of the kernel side."""

    batches: Rows


@dataclass(slots=True)
class Fetch:
    """One batch that the training thread got; times in ns of CLOCK_MONOTONIC.

    Attributes:
        serial: of the step that the clock was in.
        key: the batch; None where it is not known which one it is.
        waited: whether the time counts in `loader/wait_ns`.
        delivered: whether the step got this very batch, and not one fetched ahead of it.
    """

    serial: int
    key: Key | None
    begin_ns: int
    end_ns: int
    waited: bool
    delivered: bool


class Ledger:
    """Joins the batches of the kernel with the fetches of the training thread.

    `follow`, `fetched`, `turned` and `carry` are for the training thread. `read` is called by
    whoever collects steps, one thread at a time, and `close` by the one that makes records of them.

    Args:
        kernel: the ring of batches; None where there are no probes.
        timed: whether the kernel tells what the makers of batches spent their time on.
        receives: whether it tells what they received.

    Attributes:
        watched: whether somebody tells of fetches.
        lost_count: batches that were overwritten before they were read.
    """

    def __init__(
        self,
        kernel: KernelBatches | None = None,
        *,
        timed: bool = False,
        receives: bool = False,
    ) -> None:
        self.watched = False
        self.lost_count = 0
        self._ring = None if kernel is None else kernel.batches
        self._timed = timed
        self._receives = receives
        self._taken = 0
        self._followed: deque[int] = deque(maxlen=MAX_FOLLOWED)
        self._fresh: deque[Rows] = deque()
        self._kept_keys: list[Key] = []
        self._kept = np.empty(0, BATCH_ROW)
        self._fetches: deque[Fetch] = deque(maxlen=MAX_FETCHES)
        self._turns: deque[list[int]] = deque(maxlen=MAX_FETCHES)

    @property
    def marks(self) -> bool:
        """Whether it is of use that batches are marked."""
        return self._ring is not None

    def follow(self, loader: int) -> None:
        """The fetches from a loader will tell which batch they got."""
        self._followed.append(loader)

    def fetched(self, fetch: Fetch) -> None:
        """Take a fetch that is over."""
        self._fetches.append(fetch)

    def turned(self, serial: int, duration_ns: int) -> None:
        """Take a start or end of workers, waited for in the step of a serial."""
        self._turns.append([serial, duration_ns])

    def carry(self, cancelled: int, serial: int) -> None:
        """What was opened as a step of its own belongs to the step before."""
        for fetch in list(self._fetches):
            if fetch.serial == cancelled:
                fetch.serial = serial
        for turn in list(self._turns):
            if turn[0] == cancelled:
                turn[0] = serial

    def read(self) -> None:
        """Copy what the kernel's ring has that was not copied yet."""
        ring = self._ring
        if ring is None:
            return
        if ring["ordinal"][self._taken % BATCHES] <= self._taken:
            return  # the next entry is not written: cheaper than to look at all
        newest = int(ring["ordinal"].max())
        first = max(self._taken, newest - BATCHES)
        turns = np.arange(first, newest, dtype=np.uint64)
        entries = ring[turns % BATCHES]
        now = ring["ordinal"][turns % BATCHES]
        unwritten = np.flatnonzero(now < turns + 1)
        # What another CPU is writing will be there the next time, with all that comes after it.
        count = int(unwritten[0]) if len(unwritten) else len(turns)
        whole = (entries["ordinal"] == turns + 1) & (now == turns + 1)
        whole = whole[:count]
        self.lost_count += first - self._taken + int((~whole).sum())
        self._taken = first + count
        if whole.any():
            self._fresh.append(entries[:count][whole])

    def release(self) -> None:
        """Let go of the kernel's memory, when nobody will ask any more."""
        self._ring = None

    def close(
        self, steps: Sequence[ClosedStep], *, last: bool, reads_known: bool = True
    ) -> tuple[Columns, Rows | None]:
        """What is to be said of consecutive closed steps; asked once for each step.

        Args:
            steps: the steps.
            last: whether none will follow, so that nothing need be kept.
            reads_known: whether all that is read is counted.

        Returns:
            Values by catalogue name, and rows of `BATCH_ROW`.
        """
        if not self.watched:
            return {}, None
        split = _Split(steps)
        unnamed = self._finished(steps, last)
        fetches = list(self._fetches_until(steps[-1].serial))
        fetched = self._join(split, fetches)
        while self._turns and self._turns[0][0] <= steps[-1].serial:
            split.turn(*self._turns.popleft())
        given_up = self._given_up(0 if last else MAX_KEPT)
        rows = np.concatenate([unnamed, fetched, given_up]) if self.marks else None
        unknown = () if self._timed else _TIMES
        unknown += () if reads_known else _READS
        unknown += () if self._receives else ("received_bytes",)
        for name in unknown:
            if rows is not None:
                rows[name] = UNKNOWN
        return split.columns(timed=self._timed), rows

    def _finished(self, steps: Sequence[ClosedStep], last: bool) -> Rows:
        """Keep the batches that are finished; returns those that no fetch will name."""
        fresh = np.concatenate([np.empty(0, BATCH), *self._taken_fresh()])
        due = fresh["end_ns"] < (np.iinfo(np.int64).max if last else steps[-1].end_ns)
        if not due.all():
            self._fresh.appendleft(fresh[~due])
        entries = fresh[due]
        rows = _rows(entries, steps)
        named = np.isin(entries["loader"], list(self._followed))
        self._kept_keys += _keys(entries[named])
        self._kept = np.concatenate([self._kept, rows[named]])
        return rows[~named]

    def _join(self, split: _Split, fetches: Sequence[Fetch]) -> Rows:
        """Tell the steps what they waited for; returns the batches that were got, in that order."""
        at = {key: place for place, key in enumerate(self._kept_keys)}
        places = np.array([at.pop(f.key, -1) if f.key else -1 for f in fetches], np.intp)
        is_known = places >= 0
        rows = self._kept[places[is_known]]
        left = np.ones(len(self._kept), np.bool_)
        left[places[is_known]] = False
        self._kept = self._kept[left]
        self._kept_keys = [key for key, stays in zip(self._kept_keys, left, strict=True) if stays]
        split.take(fetches, is_known, rows)
        return rows

    def _taken_fresh(self) -> Iterator[Rows]:
        while self._fresh:
            yield self._fresh.popleft()

    def _fetches_until(self, serial: int) -> Iterator[Fetch]:
        while self._fetches and self._fetches[0].serial <= serial:
            yield self._fetches.popleft()

    def _given_up(self, room: int) -> Rows:
        count = max(0, len(self._kept) - room)
        given_up, self._kept = self._kept[:count], self._kept[count:]
        self._kept_keys = self._kept_keys[count:]
        return given_up


class _Split:
    """What the waits of some steps were for."""

    def __init__(self, steps: Sequence[ClosedStep]) -> None:
        self._steps = steps
        numbered = enumerate(steps)
        self._places = {serial: place for place, step in numbered for serial in step.serials}
        self._parts = np.zeros((len(steps), len(SPLIT)))
        self._turns = np.zeros(len(steps))
        self._known = np.array([step.unexplained == 0 for step in steps])

    def take(self, fetches: Sequence[Fetch], is_known: npt.NDArray[np.bool_], rows: Rows) -> None:
        """Add what was fetched, and write into the batches who got them.

        Args:
            fetches: those of the steps; of one that is in none of them nothing is said.
            is_known: of each, whether there is a row of its batch. Shape (n,).
            rows: of the batches that are known, of `BATCH_ROW`.
        """
        if not fetches:
            return
        place = np.array([self._places.get(fetch.serial, -1) for fetch in fetches])
        waited = np.array([fetch.waited for fetch in fetches]) & (place >= 0)
        self._known[place[waited & ~is_known]] = False
        got = [fetch for fetch, known in zip(fetches, is_known, strict=True) if known]
        rows["fetch_begin_ns"] = [fetch.begin_ns for fetch in got]
        rows["fetch_end_ns"] = [fetch.end_ns for fetch in got]
        place, waited = place[is_known], waited[is_known]
        delivered = np.array([fetch.delivered for fetch in got], np.bool_) & (place >= 0)
        numbers = np.array([step.step for step in self._steps])
        rows["for_step"][delivered] = numbers[place[delivered]]
        parts, start_ns = _parts_of(rows, np.array([_is_first(fetch.key) for fetch in got], bool))
        np.add.at(self._parts, place[waited], parts[waited])
        np.add.at(self._turns, place[waited], start_ns[waited])

    def turn(self, serial: int, duration_ns: int) -> None:
        """Add a start or end of workers."""
        place = self._places.get(serial)
        if place is not None:
            self._turns[place] += duration_ns

    def columns(self, *, timed: bool) -> Columns:
        """The parts in whole ns, which add up to the wait; NaN where one is unknown."""
        columns = {TURNOVER: self._turns}
        if timed:
            wait = np.array([step.phase_ns[Phase.LOADER] for step in self._steps], np.float64)
            total = self._parts.sum(axis=1)
            scale = np.minimum(1.0, wait / np.maximum(total, 1.0))
            parts = np.floor(self._parts * scale[:, None])
            table = np.column_stack([parts, wait - parts.sum(axis=1)])
            table[~self._known] = np.nan
            columns.update(zip((*SPLIT, REST), table.T, strict=True))
        return columns


def _is_first(key: Key | None) -> bool:
    """Whether it is the first batch of a worker, which may have begun with the wait for it."""
    return key is not None and key[2] != MAIN_WORKER and key[1] == key[3] == 0


def _parts_of(
    rows: Rows, first: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """What the makers of batches did during the waits for them, and how long they had not begun.

    A batch is taken to have gone on evenly: of its times only the sums are known.
    """
    begin, end = rows["begin_ns"], rows["end_ns"]
    fetch_begin, fetch_end = rows["fetch_begin_ns"], rows["fetch_end_ns"]
    overlap = np.minimum(fetch_end, end) - np.maximum(fetch_begin, begin)
    share = np.maximum(0.0, overlap / np.maximum(1, end - begin))
    times = np.stack([rows[name] for name in _TIMES], axis=-1) * share[:, None]
    return times, np.maximum(0, np.where(first, np.minimum(fetch_end, begin) - fetch_begin, 0))


def _keys(entries: Rows) -> Iterator[Key]:
    columns = (entries[name].tolist() for name in ("loader", "pass", "worker", "number"))
    return zip(*columns, strict=True)


def _rows(entries: Rows, steps: Sequence[ClosedStep]) -> Rows:
    """Rows of the record; what ended before the first of `steps` was read late."""
    edges = np.array([step.end_ns for step in steps])
    place = np.minimum(np.searchsorted(edges, entries["end_ns"], "right"), len(steps) - 1)
    rows = np.zeros(len(entries), BATCH_ROW)
    rows["step"] = np.array([step.step for step in steps])[place]
    rows["epoch"] = np.array([step.epoch for step in steps])[place]
    for name in ("for_step", "fetch_begin_ns", "fetch_end_ns"):
        rows[name] = UNKNOWN
    rows["loader"] = entries["loader"]
    rows["worker"] = np.where(entries["worker"] == MAIN_WORKER, UNKNOWN, entries["worker"])
    for name in _SAME:
        rows[name] = entries[name]
    rows["slowest_file"] = entries["slowest_name"]
    rows["device_ns"], rows["cpu_wait_ns"] = entries["device_ns"], entries["runqueue_ns"]
    rows["sleep_ns"] = entries["sleep_ns"]
    off = entries["device_ns"] + entries["runqueue_ns"] + entries["sleep_ns"]
    rows["compute_ns"] = np.maximum(0, rows["end_ns"] - rows["begin_ns"] - off.astype(np.int64))
    return rows
