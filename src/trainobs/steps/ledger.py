"""The ledger of batches: which worker made what, for which step, and why the loop had to wait.

Two books are joined here. The kernel writes one entry for each batch that a loader makes: when, by
whom, and how much of that time its maker was on a CPU, waited for one, or slept for a device. The
training thread writes one entry for each batch that it gets: when, and which batch of which worker
that is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count, islice
from operator import eq
from struct import Struct
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import BATCH, BATCHES, MAIN_WORKER, Phase
from trainobs.core.records import BATCH_ROW, UNKNOWN
from trainobs.steps.closed_step import ClosedStep, ClosedSteps, Ints
from trainobs.steps.fetched_ahead import KEY_BYTES, FetchedAhead, Rows, found, keys_of, until

MAX_KEPT = 4096
"""Batches that wait to be fetched; of more, the oldest go to the record without their step."""

MAX_FOLLOWED = 4096
"""Passes whose batches are told: a loop may begin one in every step (`next(iter(loader))`)."""

MAX_FETCHES = 65_536
"""Fetches that wait for their step to close; of more, the oldest are dropped."""

AT_ONCE = 64
"""Entries of the kernel's ring that are looked at together: as many as steps often bring."""

SPLIT = ("loader/device_ns", "loader/cpu_wait_ns", "loader/compute_ns", "loader/sleep_ns")
"""The parts of `loader/wait_ns`, but for the last one."""

REST = "loader/handover_ns"
TURNOVER = "loader/start_stop_ns"
OF_WORKERS = "loader/worker_start_stop_ns"
BATCH_COUNT = "loader/batch_count"

Columns = dict[str, npt.NDArray[np.float64]]
Key = tuple[int, int, int, int]
"""Loader, pass over it, worker, and which batch of that worker in that pass."""

Fetch = bytearray
"""One batch that the training thread got, as packed numbers: the serial of the step that the clock
was in, the four of its `Key` (worker -1: nobody knows which batch it is, and it is counted alone),
when it was asked for and when it was there (ns of CLOCK_MONOTONIC), whether that time counts in
`loader/wait_ns`, and whether the step got this very batch, and not one fetched ahead of it. Of
loaders that `gives_later` names, somebody else tells which step got it."""

_INT64 = Struct("=q")

_SERIAL, _KEY, _BEGIN, _END, _WAITED, _DELIVERED = 0, slice(1, 5), 5, 6, 7, 8
_KEY_FIELDS = ("loader", "pass", "worker", "number")

_WHOLE = np.dtype((np.void, BATCH_ROW.itemsize))
"""Rows as one thing each: to copy them field by field takes ten times as long."""

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


class Ledger:
    """Joins the batches of the kernel with the fetches of the training thread.

    `follow`, `gives_later`, `fetched`, `given`, `turned` and `carry` are for the training thread.
    `read` is called by whoever collects steps, one thread at a time, and `close` by the one that
    makes records of them.

    Args:
        kernel: the ring of batches; None where there are no probes.
        timed: whether the kernel tells what the makers of batches spent their time on.
        receives: whether it tells what they received.

    Attributes:
        fetched: takes a fetch that is over. No method, since each step calls it.
        given: takes, of a loader that `gives_later`, the serial of a step and the `Key` of the
            batch that it got.
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
        self._fresh: deque[bytes] = deque()
        self._kept_keys = np.empty(0, KEY_BYTES)
        self._kept = np.empty(0, _WHOLE)
        self._fetches: deque[Fetch] = deque(maxlen=MAX_FETCHES)
        self.fetched = self._fetches.append
        self._ahead = FetchedAhead(MAX_FOLLOWED, MAX_FETCHES)
        self.given = self._ahead.given
        self._turns: deque[list[int]] = deque(maxlen=MAX_FETCHES)

    @property
    def marks(self) -> bool:
        """Whether it is of use that batches are marked."""
        return self._ring is not None

    def follow(self, loader: int) -> None:
        """The fetches from a loader will tell which batch they got."""
        self._followed.append(loader)

    def gives_later(self, loader: int) -> None:
        """What is fetched from a loader is kept until it is `given` to a step."""
        self._ahead.loaders.append(loader)

    def turned(self, serial: int, duration_ns: int, workers_ns: int) -> None:
        """Take a start or end of a loader, and what of it is surely that of its workers.

        It was waited for in the step of a serial.
        """
        self._turns.append([serial, duration_ns, workers_ns])

    def carry(self, cancelled: int, serial: int) -> None:
        """What was opened as a step of its own belongs to the step before."""
        with suppress(IndexError):  # the first is reached, or older ones are taken off meanwhile
            place = -1  # the newest
            while _serial_of(self._fetches[place]) == cancelled:
                _INT64.pack_into(self._fetches[place], 0, serial)
                place -= 1
        for turn in list(self._turns):
            if turn[0] == cancelled:
                turn[0] = serial
        self._ahead.carry(cancelled, serial)

    def read(self) -> None:
        """Copy what the kernel's ring has that was not copied yet."""
        while self._ring is not None and self._read_some(self._ring):
            pass

    def _read_some(self, ring: Rows) -> bool:
        """The same of at most `AT_ONCE` entries; whether there may be more."""
        ordinals = ring["ordinal"].data
        first = self._taken % BATCHES
        told = ordinals[first : first + AT_ONCE].tolist()
        if told[0] > self._taken + 1:  # it came round
            oldest = max(ordinals) - BATCHES
            self.lost_count += oldest - self._taken
            self._taken = oldest
            return True
        # What another CPU is writing will be there the next time, with all that comes after it.
        if told[0] <= self._taken:
            return False
        end = first + [*map(eq, told, count(self._taken + 1)), False].index(False)
        entries = ring[first:end].tobytes()
        whole = list(map(eq, told, ordinals[first:end].tolist()))
        if not all(whole):
            entries = np.frombuffer(entries, BATCH)[whole].tobytes()
            self.lost_count += whole.count(False)
        self._taken += len(whole)
        self._fresh.append(entries)
        return len(whole) == len(told)

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
        steps = ClosedSteps.from_steps(steps)
        split = _Split(steps)
        unnamed = self._finished(steps, last)
        got, keys = self._join(split, self._fetched_until(steps[-1].serial))
        got = self._ahead.close(steps, got, keys, room=0 if last else MAX_KEPT)
        fetched = got.view(_WHOLE)
        split.turn(list(until(self._turns, steps[-1].serial)))
        given_up = self._given_up(0 if last else MAX_KEPT)
        rows = None
        if self.marks:
            rows = np.concatenate([unnamed, fetched, given_up]).view(BATCH_ROW)
        unknown = () if self._timed else _TIMES
        unknown += () if reads_known else _READS
        unknown += () if self._receives else ("received_bytes",)
        for name in unknown:
            if rows is not None:
                rows[name] = UNKNOWN
        return split.columns(timed=self._timed, marked=self.marks), rows

    def _finished(self, steps: ClosedSteps, last: bool) -> Rows:
        """Keep the batches that are finished; returns those that no fetch will name."""
        fresh = np.frombuffer(b"".join(self._taken_fresh()), BATCH)
        due = fresh["end_ns"] < (np.iinfo(np.int64).max if last else steps[-1].end_ns)
        if not due.all():
            self._fresh.appendleft(fresh[~due].tobytes())
            fresh = fresh[due]
        rows = _rows(fresh, steps).view(_WHOLE)
        named = np.isin(fresh["loader"], list(self._followed))
        keys = keys_of(np.stack([fresh[field].astype(np.int64) for field in _KEY_FIELDS], axis=1))
        self._kept_keys = np.concatenate([self._kept_keys, keys[named]])
        self._kept = np.concatenate([self._kept, rows[named]])
        return rows[~named]

    def _fetched_until(self, serial: int) -> Ints:
        """Take the fetches of steps up to a serial off; shape (n, 9)."""
        waiting = self._fetches.copy()
        fetches = np.frombuffer(b"".join(waiting), np.int64).reshape(-1, 9)
        later = np.flatnonzero(fetches[:, _SERIAL] > serial)
        taken = int(later[0]) if len(later) else len(fetches)
        for fetch in islice(waiting, taken):
            if self._fetches[0] is fetch:  # else it was dropped meanwhile, for a newer one
                self._fetches.popleft()
        return fetches[:taken]

    def _join(self, split: _Split, fetches: Ints) -> tuple[Rows, Ints]:
        """Tell the steps what they waited for; returns the batches that were got, in that order.

        And the `Key` of each.
        """
        places = found(self._kept_keys, keys_of(fetches[:, _KEY]))
        is_known = places >= 0
        rows = self._kept[places[is_known]]
        left = np.ones(len(self._kept), np.bool_)
        left[places[is_known]] = False
        self._kept, self._kept_keys = self._kept[left], self._kept_keys[left]
        got = rows.view(BATCH_ROW)
        split.take(fetches, is_known, got)
        return got, fetches[is_known, _KEY]

    def _taken_fresh(self) -> Iterator[bytes]:
        while self._fresh:
            yield self._fresh.popleft()

    def _given_up(self, room: int) -> Rows:
        count = max(0, len(self._kept) - room)
        given_up, self._kept = self._kept[:count], self._kept[count:]
        self._kept_keys = self._kept_keys[count:]
        return given_up


def _serial_of(fetch: Fetch) -> int:
    serial: int = _INT64.unpack_from(fetch)[0]
    return serial


class _Split:
    """What the waits of some steps were for."""

    def __init__(self, steps: ClosedSteps) -> None:
        self._steps = steps
        self._parts = np.zeros((len(steps), len(SPLIT)))
        self._turns = np.zeros((len(steps), 2))  # in all, and surely of workers
        self._counts = np.zeros(len(steps))
        self._known = steps.unexplained == 0

    def take(self, fetches: Ints, is_known: npt.NDArray[np.bool_], rows: Rows) -> None:
        """Add what was fetched, and write into the batches who got them.

        Args:
            fetches: those of the steps, shape (n, 9); of one that is in none nothing is said.
            is_known: of each, whether there is a row of its batch. Shape (n,).
            rows: of the batches that are known, of `BATCH_ROW`.
        """
        if not len(fetches):
            return
        place = self._steps.places(fetches[:, _SERIAL])
        waited = (fetches[:, _WAITED] > 0) & (place >= 0)
        self._known[place[waited & ~is_known]] = False
        self._counts += np.bincount(place[waited], minlength=len(self._counts))
        got, place, waited = fetches[is_known], place[is_known], waited[is_known]
        rows["fetch_begin_ns"], rows["fetch_end_ns"] = got[:, _BEGIN], got[:, _END]
        delivered = (got[:, _DELIVERED] > 0) & (place >= 0)
        rows["for_step"][delivered] = self._steps.step[place[delivered]]
        parts, start_ns = _parts_of(rows, _are_first(got[:, _KEY]))
        np.add.at(self._parts, place[waited], parts[waited])
        np.add.at(self._turns, place[waited], start_ns[waited, None])

    def turn(self, turns: Sequence[list[int]]) -> None:
        """Add starts and ends: of each the serial, the time, and what is surely of workers."""
        if turns:
            table = np.array(turns, np.int64)
            place = self._steps.places(table[:, 0])
            np.add.at(self._turns, place[place >= 0], table[place >= 0, 1:])

    def columns(self, *, timed: bool, marked: bool) -> Columns:
        """The parts in whole ns, which add up to the wait; NaN where one is unknown.

        Fetches are told of batches that are marked alone, and so is their number.
        """
        columns = dict(zip((TURNOVER, OF_WORKERS), self._turns.T, strict=True))
        if marked:
            columns[BATCH_COUNT] = self._counts
        if timed:
            wait = self._steps.phase_ns[:, Phase.LOADER].astype(np.float64)
            total = self._parts.sum(axis=1)
            scale = np.minimum(1.0, wait / np.maximum(total, 1.0))
            parts = np.floor(self._parts * scale[:, None])
            table = np.column_stack([parts, wait - parts.sum(axis=1)])
            table[~self._known] = np.nan
            columns.update(zip((*SPLIT, REST), table.T, strict=True))
        return columns


def _are_first(keys: Ints) -> npt.NDArray[np.bool_]:
    """Whether each is the first batch of a worker, which may have begun with the wait for it."""
    _, passes, workers, numbers = keys.T
    first: npt.NDArray[np.bool_] = (workers != MAIN_WORKER) & (passes == 0) & (numbers == 0)
    return first


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


def _rows(entries: Rows, steps: ClosedSteps) -> Rows:
    """Rows of the record; what ended before the first of `steps` was read late."""
    ends = entries["end_ns"].astype(np.int64)
    place = np.minimum(np.searchsorted(steps.end_ns, ends, "right"), len(steps) - 1)
    rows = np.zeros(len(entries), BATCH_ROW)
    rows["step"], rows["epoch"] = steps.step[place], steps.epoch[place]
    for name in ("for_step", "fetch_begin_ns", "fetch_end_ns"):
        rows[name] = UNKNOWN
    rows["loader"] = entries["loader"]
    worker = entries["worker"].astype(np.int64)
    rows["worker"] = np.where(worker == MAIN_WORKER, UNKNOWN, worker)
    for name in _SAME:
        rows[name] = entries[name]
    rows["slowest_file"] = entries["slowest_name"]
    rows["device_ns"], rows["cpu_wait_ns"] = entries["device_ns"], entries["runqueue_ns"]
    rows["sleep_ns"] = entries["sleep_ns"]
    off = entries["device_ns"] + entries["runqueue_ns"] + entries["sleep_ns"]
    rows["compute_ns"] = np.maximum(0, rows["end_ns"] - rows["begin_ns"] - off.astype(np.int64))
    return rows
