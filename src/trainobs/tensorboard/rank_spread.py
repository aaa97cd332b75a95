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
from trainobs.core.sink import Sink
from trainobs.tensorboard import protos
from trainobs.tensorboard.event_file import EventWriter
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
        writer: where rank 0 logs; None on the others. Somebody else closes it.
        every_tag: whether all that is compared is logged, or the time of a step alone.
    """

    name = "comparison of ranks"

    def __init__(
        self,
        board: Board,
        *,
        world_size: int,
        every: int,
        first_step: int = 0,
        writer: EventWriter | None,
        every_tag: bool = False,
    ) -> None:
        self._board = board
        self._world_size = world_size
        self._writer = writer
        self._logged = COMPARED if every_tag else COMPARED[:1]
        self._ends = WindowEnds(every, first_step)
        self._rows: list[npt.NDArray[np.float64]] = []
        self._windows: deque[tuple[int, Means]] = deque(maxlen=KEPT_WINDOWS)
        self._wall_times: dict[int, float] = {}
        self._offset_ns = 0

    def begin(self, info: RunInfo) -> None:
        """Note the clocks, and begin to look at each other."""
        self._board.start()
        self._offset_ns = info.clock["wall_ns"] - info.clock["monotonic_ns"]

    def write(self, batch: StepTable) -> None:
        """Take the next closed steps."""
        rows = np.flatnonzero(batch.step != SETUP)
        columns = [batch.columns.get(name, np.full(len(batch), np.nan)) for name in COMPARED]
        table = np.stack(columns, axis=1)[rows]
        first = 0
        for last in self._ends.of(batch.step[rows]):
            self._rows.append(table[first : last + 1])
            self._close_window(batch, int(rows[last]))
            first = last + 1
        self._rows.append(table[first:])
        self._log()

    def flush(self) -> None:
        """Log what others have shown meanwhile."""
        self._log()

    def end(self, summary: dict[str, object]) -> None:
        """Ask the others once more."""
        self._board.stop(self._is_complete)
        self._log()

    def _close_window(self, batch: StepTable, row: int) -> None:
        table = np.concatenate(self._rows)
        self._rows = []
        known = (~np.isnan(table)).sum(axis=0)
        means = divided(np.nansum(table, axis=0), known)
        step = int(batch.step[row])
        self._windows.append((step, tuple(means.tolist())))
        self._wall_times[step] = (int(batch.start_ns[row]) + self._offset_ns) / 1e9
        self._board.show(b"".join(_WINDOW.pack(s, *m) for s, m in self._windows))

    def _log(self) -> None:
        """Log the windows that every rank has shown, once each."""
        if self._writer is None or not self._windows:
            return
        others = self._others()
        if len(others) != self._world_size - 1:
            return
        for step, own in list(self._windows):
            if step in self._wall_times and all(step in other for other in others):
                self._add(self._writer, step, [own, *(other[step] for other in others)])
        kept = {step for step, _ in self._windows}
        self._wall_times = {s: t for s, t in self._wall_times.items() if s in kept}

    def _others(self) -> list[dict[int, Means]]:
        """Windows of each rank that has shown any."""
        return [dict(_unpacked(value)) for value in self._board.seen().values()]

    def _is_complete(self) -> bool:
        """Whether every rank has shown the windows of this one."""
        others = self._others()
        steps = [step for step, _ in self._windows]
        whole = all(step in other for other in others for step in steps)
        return not steps or (whole and len(others) == self._world_size - 1)

    def _add(self, writer: EventWriter, step: int, means: list[Means]) -> None:
        values = [
            protos.Summary.Value(
                tag=f"{over_ranks(tag.name)}/{what}", simple_value=of(column) * tag.factor
            )
            for name, column in zip(COMPARED, zip(*means, strict=True), strict=True)
            if name in self._logged and not np.isnan(column).any()
            for tag in (METRICS[name].tag,)
            for what, of in (("min", min), ("median", np.median), ("max", max))
        ]
        summary = protos.Summary(value=values)
        wall_time = self._wall_times[step]
        writer.add_event(protos.Event(wall_time=wall_time, step=step, summary=summary))
        del self._wall_times[step]


def _unpacked(value: bytes) -> Iterator[tuple[int, Means]]:
    """Windows that another rank shows; one of another version is not understood, and has none."""
    if len(value) % _WINDOW.size == 0:
        for step, *means in _WINDOW.iter_unpack(value):
            yield step, tuple(means)
