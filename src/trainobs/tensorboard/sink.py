"""TensorBoard: the metrics beside the losses, while training runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from trainobs.core.errors import SettingError
from trainobs.core.records import DATA_IS_NAMED, SETUP, RunInfo, StepTable
from trainobs.core.sink import Points, Sink
from trainobs.core.unforked import unforked
from trainobs.tensorboard import protos
from trainobs.tensorboard.curves import Curves
from trainobs.tensorboard.event_file import EventFile, EventWriter
from trainobs.tensorboard.known_data import KnownData
from trainobs.tensorboard.latency import latency_values
from trainobs.tensorboard.values import scalars, text_value
from trainobs.tensorboard.window import STEPS_ALONE, StepWindows, WindowEnds, WindowPoints

if TYPE_CHECKING:
    from trainobs.access import AccessCounts
    from trainobs.tensorboard.table_curves import TableCurves
    from trainobs.tensorboard.table_views import TableViews
    from trainobs.tensorboard.verdicts import Text, Verdicts
    from trainobs.verdict.verdict import Verdict

__all__ = ["EventFile", "EventWriter", "TensorBoardSink"]

LATENCY_EVERY_NS = 30_000_000_000
"""Training time between two rows of the latency histograms."""

_FOR_VERDICTS = ("trainobs.tensorboard.verdicts", "numpy.ma")
"""What the first verdicts import: `numpy.ma` as they call `np.median` and `np.unique`."""

HELD_POINTS = 512
"""Steps with points that are held for the next flush; of more, the writer takes some before it."""


class _Held(NamedTuple):
    """What is to be logged at a step; `at_ns` is of CLOCK_MONOTONIC."""

    step: int
    at_ns: int
    points: Sequence[tuple[str, float]] = ()
    texts: Sequence[tuple[str, str]] = ()

    def summary(self) -> protos.Summary:
        summary = scalars(self.points)
        summary.value.extend(text_value(tag, markdown) for tag, markdown in self.texts)
        return summary


def no_counts() -> None:
    """Of a run that counts no lookups."""


def tell_nobody(verdict: Verdict) -> None:
    """Of a run that is not to say anything."""


class TensorBoardSink(Sink):
    """Logs one event for each of the first `STEPS_ALONE` steps, then for each window of steps.

    A point at step s stands for the window since the last point: per-step sums as their mean,
    ratios and quantiles formed from sums, and for some metrics `<tag>/p95` and `<tag>/max` of
    the window, since TensorBoard keeps only 1000 points of a curve and would drop a single slow
    step. Windows end where the frameworks log: at the last of each `log_every_n_steps` steps from
    `first_step` on (0 in Lightning, 1 in Hugging Face's Trainer), or where a number that makes
    larger strides has passed such a step. A window never holds more than `log_every_n_steps` steps,
    whatever their numbers. One that the end of the run cuts short has no point: a few steps with
    the last checkpoint and validation would stand as a spike beside means. What happened before the
    first step has none, either, and a tag has points once it has two (`Curves`); the run log holds
    all.

    A verdict is logged as text at the end of each epoch and of the run (docs/verdicts.md). Of a
    model with embedding tables there are curves by table, and now and then a text of all tables and
    a picture of their skew (docs/embeddings.md).

    Tags and their units are those of the catalogue (`Metric.tag`). The sink closes `writer` at
    `end`.

    Attributes:
        lost_steps: steps in windows that the writer could not keep.

    Raises:
        SettingError: `log_every_n_steps` is not positive.
    """

    name = "tensorboard"

    def __init__(
        self,
        writer: EventWriter,
        log_every_n_steps: int,
        first_step: int = 0,
        every_tag: bool = False,
        counts: Callable[[], AccessCounts | None] = no_counts,
        on_verdict: Callable[[Verdict], None] = tell_nobody,
    ) -> None:
        if log_every_n_steps < 1:
            raise SettingError(
                failed="TensorBoard cannot be logged to.",
                found=f"log_every_n_steps={log_every_n_steps}",
                do="give a number of steps from 1 upwards",
            )
        self._writer = writer
        self._ends = WindowEnds(log_every_n_steps, first_step, alone=STEPS_ALONE)
        self._every_tag = every_tag
        self._offset_ns = 0
        self._windows = StepWindows(every_tag)
        self._known_data = KnownData()
        self._curves = Curves()
        self._step = SETUP
        self._end_ns = 0
        self._latency: npt.NDArray[np.uint64] | None = None
        self._logged: npt.NDArray[np.uint64] | None = None
        self._latency_due_ns = 0
        self._held: deque[_Held] = deque()
        self._verdicts: Verdicts | None = None
        self._info: RunInfo | None = None
        self._counts = counts
        self._on_verdict = on_verdict
        self._tables: TableCurves | None = None
        self._views: TableViews | None = None

    def prepare(self) -> None:
        """Import verdicts: later, steps would wait for the interpreter's lock meanwhile."""
        with unforked():
            for name in _FOR_VERDICTS:
                import_module(name)

    def begin(self, info: RunInfo) -> None:
        """Note the clocks."""
        clock = info.clock
        self._info = info
        self._windows = StepWindows(self._every_tag, info.counters)
        self._offset_ns = clock["wall_ns"] - clock["monotonic_ns"]

    def write(self, table: StepTable) -> None:
        """Take the next closed steps, and log at those that end a window."""
        known = table.step != SETUP
        steps = table if known.all() else table.select(known)
        named = self._info is not None and bool(self._info.settings.get(DATA_IS_NAMED))
        self._known_data.take(table, named=named)
        self._begin_tables()
        if not len(steps):
            return
        ends = self._ends.of(steps.step)
        first = 0
        for last, window in zip(ends, self._windows.add(steps, ends), strict=True):
            self._take_lookups(steps, slice(first, last + 1))
            self._log_window(window)
            first = last + 1
        self._take_lookups(steps, slice(first, None))
        self._step, self._end_ns = int(steps.step[-1]), steps.end_ns
        self._judge(table)

    def latency(self, buckets: npt.NDArray[np.uint64]) -> None:
        """Take the latency histograms since the run began, shape (op, class, role, BUCKETS)."""
        self._latency = buckets.copy()

    def points(self, points: Points) -> None:
        """Log points of curves that are made elsewhere.

        Raises:
            OSError: the writer is full.
        """
        self._log_held()  # in the order of time
        for step, at_ns, values in self._curves.of(points):
            self._writer.add_event(self._event(scalars(values), step, at_ns))

    def flush(self) -> None:
        """Show TensorBoard what was logged so far.

        Raises:
            OSError: the writer failed for now.
        """
        self._log_held()
        if self._end_ns >= self._latency_due_ns:
            self._log_latency()
        if self._views and self._views.due():
            self._log_views(self._views)
        self._writer.flush()

    def end(self, summary: dict[str, object]) -> None:
        """Log what is not bound to a window, and close the writer.

        Raises:
            OSError: the writer failed.
        """
        self._log_held()
        self._log_latency()
        if self._tables:
            self._tables.end_window(len(self._windows))
        if self._views:
            self._log_views(self._views)
        if self._verdicts:
            self._tell(self._verdicts.end())
            self._log_held()
        try:
            self._writer.close()
        finally:
            if self._verdicts and self._verdicts.of_run:
                self._on_verdict(self._verdicts.of_run)

    def _begin_tables(self) -> None:
        """Embedding tables become known after the run began."""
        if self._tables is None and self._info is not None and self._info.tables:
            with unforked():
                from trainobs.tensorboard.table_curves import TableCurves
                from trainobs.tensorboard.table_views import TableViews
            self._tables = TableCurves(self._info.tables, self._every_tag)
            self._views = TableViews(self._tables, self._counts)

    def _judge(self, table: StepTable) -> None:
        if self._verdicts is None and self._info is not None:
            with unforked():
                from trainobs.tensorboard.verdicts import Verdicts
            self._verdicts = Verdicts(self._info)
        if self._verdicts:
            self._tell(self._verdicts.add(table))

    def _take_lookups(self, steps: StepTable, rows: slice) -> None:
        if self._tables is not None and steps.lookups is not None:
            inside = np.isin(steps.lookups["step"], steps.step[rows])
            self._tables.add(steps.lookups[inside])

    def _log_window(self, window: WindowPoints) -> None:
        points = self._known_data.of(window.points)
        if self._tables is not None:
            points += self._tables.scalars(window.step_count)
        made = self._curves.of(Points(window.step, window.end_ns, points))
        if not all([self._hold(_Held(*each)) for each in made]):
            self.lost_steps += window.step_count

    def _hold(self, held: _Held) -> bool:
        """Keep it for the next flush; False if there is no more room."""
        if len(self._held) >= HELD_POINTS:
            self._log_held()
        if len(self._held) >= HELD_POINTS:
            return False
        self._held.append(held)
        return True

    def _log_held(self) -> None:
        while self._held and self._add(self._held[0].summary(), *self._held[0][:2]):
            self._held.popleft()

    def _log_latency(self) -> None:
        """Log what came since the last time; cumulative counts would hide a change."""
        if self._latency is None or self._step == SETUP:
            return
        before = np.zeros_like(self._latency) if self._logged is None else self._logged
        values = latency_values(self._latency - before)
        if values and not self._add(protos.Summary(value=values), self._step, self._end_ns):
            return
        self._logged, self._latency = self._latency, None
        self._latency_due_ns = self._end_ns + LATENCY_EVERY_NS

    def _log_views(self, views: TableViews) -> None:
        if self._step != SETUP:
            for value in views.values():
                self._add(protos.Summary(value=[value]), self._step, self._end_ns)

    def _tell(self, texts: Iterable[Text]) -> None:
        """Log verdicts; the run log holds what they are made of, should the writer be full."""
        for text in texts:
            self._hold(_Held(text.step, text.at_ns, texts=[(text.tag, text.markdown)]))

    def _add(self, summary: protos.Summary, step: int, at_ns: int) -> bool:
        """Log something; False if the writer is full."""
        try:
            self._writer.add_event(self._event(summary, step, at_ns))
        except OSError:  # the writer is full, and its flush, soon to come, raises the cause
            return False
        return True

    def _event(self, summary: protos.Summary, step: int, at_ns: int) -> protos.Event:
        wall_time = (at_ns + self._offset_ns) / 1e9
        return protos.Event(wall_time=wall_time, step=step, summary=summary)
