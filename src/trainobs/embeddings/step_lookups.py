"""What each table was asked for in a step: the calls of a capture, added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainobs.core.hot_rows import ServedBy
from trainobs.core.records import SETUP
from trainobs.embeddings.buffer import FeatureCounts, LookupCall, LookupCapture, host
from trainobs.embeddings.sites import ServedKey, Site
from trainobs.steps.fast_path import untracked


class CapturedStep(NamedTuple):
    """A closed step, and what was noted in it."""

    step: int
    epoch: int
    capture: LookupCapture | None
    measured: bool
    """Whether `capture` is all there was."""
    lost: tuple[int, ...] = ()
    """Tables of which it is not."""


class TableIds(NamedTuple):
    """Ids that one table was asked for."""

    ids: NDArray[np.integer]
    by: ServedBy
    """Where they were read."""


class StepLookups:
    """What each table was asked for in one step.

    Args:
        table_count: tables of the run.
        captured: the step.

    Attributes:
        asked: whether it has a row.
        lookups: its lookups; NaN where unknown.
        near: those of them that a copy on this rank's device served.
        owned: those that a copy on the device of the rank served that has the row.
        bags: its bags; NaN where unknown.
        trains: whether autograd was on.
        ids: those of all calls, of tables of which all calls were sampled.
        calls: all calls.
        times: how long modules took for them, where that was measured.
        lost: tables of which not all is known, whatever was noted.
    """

    def __init__(self, table_count: int, captured: CapturedStep) -> None:
        self.asked = untracked([False] * table_count)
        self.lookups = untracked([0.0] * table_count)
        self.near = untracked([0.0] * table_count)
        self.owned = untracked([0.0] * table_count)
        self.bags = untracked([0.0] * table_count)
        self.trains = untracked([False] * table_count)
        self.ids: dict[int, list[TableIds]] = {}
        self._unsampled: set[int] = untracked(set())
        self._measured = captured.measured
        self._is_step = captured.step != SETUP
        self.lost = captured.lost
        capture = captured.capture if captured.measured else None
        self.calls: Sequence[LookupCall] = capture.calls if capture is not None else ()
        self.times: Sequence[tuple[Site, int]] = capture.times if capture is not None else ()
        for call in self.calls:
            self.add(call)
        for table in (*self._unsampled, *self.lost):
            self.ids.pop(table, None)
        for table in self.lost:
            self.asked[table], self.near[table], self.owned[table] = False, 0.0, 0.0

    def unmeasured(self, blind: list[int]) -> None:
        """Give a row of NaN to what may have been asked unseen."""
        for table in (*blind, *self.lost) if self._measured else range(len(self.asked)):
            if self._is_step and not self.asked[table]:
                self.asked[table] = True
                self.lookups[table] = self.bags[table] = np.nan

    def add(self, call: LookupCall) -> None:
        """Another call of the step."""
        keys = call.keys or tuple(call.site.features)
        lookups, bags = _per_key(call), call.bags
        values = host(call.ids.values) if call.ids is not None and lookups is not None else None
        begin = 0
        for place, key in enumerate(keys):
            count = lookups[place] if lookups is not None else np.nan
            served = call.site.served(key)
            for table in served.tables:
                self.asked[table] = True
                self.trains[table] |= call.trains
                self.lookups[table] += count
                if served.by is not ServedBy.TABLE:
                    copies = self.near if served.by is ServedBy.DEVICE else self.owned
                    copies[table] += count
                if served.rows is None:
                    of_key = bags[place] if isinstance(bags, Sequence) else bags
                    self.bags[table] += np.nan if of_key is None else of_key
            if values is None or lookups is None:
                self._unsampled.update(served.tables)
            else:
                end = begin + lookups[place] if len(keys) > 1 else len(values)
                self._keep(call, served, values[begin:end])
                begin = end

    def _keep(self, call: LookupCall, served: ServedKey, ids: NDArray[np.integer]) -> None:
        if served.rows is not None:
            ids = rows_of_slots(served.rows, ids)
        elif call.site.passed_over is not None:
            ids = ids[ids != call.site.passed_over]
        for table in served.tables:
            self.ids.setdefault(table, []).append(TableIds(ids, served.by))


def rows_of_slots(rows: NDArray[np.int64], slots: NDArray[np.integer]) -> NDArray[np.int64]:
    """The row of each slot; -1 for what is none."""
    known = (slots >= 0) & (slots < len(rows))
    found = np.full(len(slots), -1, dtype=np.int64)
    found[known] = rows[slots[known]]
    return found


def _per_key(call: LookupCall) -> Sequence[int] | None:
    if not isinstance(call.lookups, FeatureCounts):
        return call.lookups
    values = host(call.lookups.values)
    counts: list[int] = (np.diff(values) if call.lookups.ends else values).tolist()
    return counts
