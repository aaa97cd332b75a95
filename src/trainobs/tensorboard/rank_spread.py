"""Rank 0's TensorBoard shows how far apart the ranks are."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainobs.core.catalogue import METRICS
from trainobs.core.catalogue.ranks import COMPARED, over_ranks
from trainobs.core.quotients import divided
from trainobs.core.records import SETUP, RunInfo, StepTable
from trainobs.core.sink import Points, Sink
from trainobs.tensorboard.window import WindowEnds

KEPT_WINDOWS = 32
"""Windows that a rank shows: others may look at another pace."""

_WINDOW = struct.Struct(f"<q{len(COMPARED)}d")

Means = tuple[float, ...]


class Board(Protocol):
    """Where a rank shows a value, and rank 0 sees those of the others."""

    def start(self) -> None:
        """Begin to look."""

    def show(self, value: bytes) -> None:
        """Have the others see this value from now on."""

    def seen(self) -> dict[int, bytes]:
        """On rank 0, what the others showed last, by rank."""

    def stop(self, is_complete: Callable[[], bool]) -> None:
        """One last round; on rank 0 more of them, for a moment, while that says no."""


class RanksSink(Sink):
    """Shows the means of each window; on rank 0 logs their minimum, median and maximum.

    A window is that of TensorBoard's other points, and is logged, at the same x, once every rank
    has shown it. What a rank never showed is not logged: a minimum over some ranks is none.

    Args:
        board: how ranks see each other.
        world_size: processes in the job.
        every: steps in a window.
        first_step: number that the framework gives the first step of a training.
        logs: whether this is rank 0, which makes points of what all have shown.
        every_tag: whether all that is compared is logged, or the time of a step alone.
    """

    name = "comparison of ranks"
    stays = True

    def __init__(
        self,
        board: Board,
        *,
        world_size: int,
        every: int,
        first_step: int = 0,
        logs: bool,
        every_tag: bool = False,
    ) -> None:
        self._board = board
        self._world_size = world_size
        self._logs = logs
        self._made: list[Points] = []
        self._logged = COMPARED if every_tag else COMPARED[:1]
        self._ends = WindowEnds(every, first_step)
        self._rows: list[npt.NDArray[np.float64]] = []
        self._windows: deque[tuple[int, Means]] = deque(maxlen=KEPT_WINDOWS)
        self._times: dict[int, int] = {}

    def begin(self, info: RunInfo) -> None:
        """Begin to look at each other."""
        self._board.start()

    def write(self, table: StepTable) -> None:
        """Take the next closed steps."""
        rows = np.flatnonzero(table.step != SETUP)
        columns = [table.columns.get(name, np.full(len(table), np.nan)) for name in COMPARED]
        values = np.stack(columns, axis=1)[rows]
        first = 0
        for last in self._ends.of(table.step[rows]):
            self._rows.append(values[first : last + 1])
            self._close_window(table, int(rows[last]))
            first = last + 1
        self._rows.append(values[first:])
        self._log()

    def made(self) -> list[Points]:
        """Points of the windows that every rank has shown, each told once."""
        made, self._made = self._made, []
        return made

    def flush(self) -> None:
        """Log what others have shown meanwhile."""
        self._log()

    def end(self, summary: dict[str, object]) -> None:
        """Ask the others once more."""
        self._board.stop(self._is_complete)
        self._log()

    def _close_window(self, table: StepTable, row: int) -> None:
        values = np.concatenate(self._rows)
        self._rows = []
        known = (~np.isnan(values)).sum(axis=0)
        means = divided(np.nansum(values, axis=0), known)
        step = int(table.step[row])
        self._windows.append((step, tuple(means.tolist())))
        self._times[step] = int(table.start_ns[row])
        self._board.show(b"".join(_WINDOW.pack(s, *m) for s, m in self._windows))

    def _log(self) -> None:
        """Log the windows that every rank has shown, once each."""
        if not self._logs or not self._windows:
            return
        others = self._others()
        if len(others) != self._world_size - 1:
            return
        for step, own in list(self._windows):
            if step in self._times and all(step in other for other in others):
                self._make(step, [own, *(other[step] for other in others)])
        kept = {step for step, _ in self._windows}
        self._times = {s: t for s, t in self._times.items() if s in kept}

    def _others(self) -> list[dict[int, Means]]:
        """Windows of each rank that has shown any."""
        return [dict(_unpacked(value)) for value in self._board.seen().values()]

    def _is_complete(self) -> bool:
        """Whether every rank has shown the windows of this one."""
        others = self._others()
        steps = [step for step, _ in self._windows]
        whole = all(step in other for other in others for step in steps)
        return not steps or (whole and len(others) == self._world_size - 1)

    def _make(self, step: int, means: list[Means]) -> None:
        values = [
            (f"{over_ranks(tag.name)}/{what}", float(of(column)) * tag.factor)
            for name, column in zip(COMPARED, zip(*means, strict=True), strict=True)
            if name in self._logged and not np.isnan(column).any()
            for tag in (METRICS[name].tag,)
            for what, of in (("min", min), ("median", np.median), ("max", max))
        ]
        self._made.append(Points(step, self._times.pop(step), values))


def _unpacked(value: bytes) -> Iterator[tuple[int, Means]]:
    """Windows that another rank shows; one of another version is not understood, and has none."""
    if len(value) % _WINDOW.size == 0:
        for step, *means in _WINDOW.iter_unpack(value):
            yield step, tuple(means)
