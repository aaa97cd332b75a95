"""The steps between two points in TensorBoard, and the numbers that stand for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainobs.core.catalogue import STEP_METRICS
from trainobs.core.catalogue.hot_rows import SHARES
from trainobs.core.catalogue.named import metric_of_phase, named_phase
from trainobs.core.catalogue.own_counters import metrics_of_counter
from trainobs.core.cells import StepCells
from trainobs.core.histogram import percentile
from trainobs.core.metrics import TAGS, Formulas, Metric, MetricKind
from trainobs.core.own_counter import OwnCounter
from trainobs.core.records import StepTable

STEPS_ALONE = 200
"""The first steps of a run, each of which has a point: a run of 24 has a curve, not one point."""

WAITED = f"{TAGS}loader/wait_percent"
"""Tag of the share of the step that waits for data."""

_PLACES = {metric.name: index for index, metric in enumerate(STEP_METRICS)}
_PARTS = [_PLACES[name] for share in SHARES.values() for name in (share.part, share.whole)]
_DURATION, _WAIT = _PLACES["step/duration_ns"], _PLACES["loader/wait_ns"]
_FACTORS = np.array([metric.tag.factor for metric in STEP_METRICS])

Floats = npt.NDArray[np.float64]


class WindowEnds:
    """Where windows end: see `TensorBoardSink`.

    Args:
        every: steps in a window.
        first_step: number that the framework gives the first step of a training.
        alone: how many of the first steps are windows by themselves.
    """

    def __init__(self, every: int, first_step: int = 0, alone: int = 0) -> None:
        self._every = every
        self._first_step = first_step
        self._alone = alone
        self._held = 0
        self._period: int | None = None

    def of(self, numbers: npt.NDArray[np.int64]) -> list[int]:
        """Rows of the next steps that end a window; `numbers` are those of the steps."""
        if not len(numbers):
            return []
        periods = (numbers - self._first_step + 1) // self._every
        # A run that resumes has logged the steps before its first.
        before = int(numbers[0] - self._first_step) // self._every
        known = before if self._period is None else self._period
        passes = np.diff(periods, prepend=known) != 0
        alone = min(self._alone, len(numbers))
        ends = list(range(alone))
        first = alone or -self._held
        for row in (alone + np.flatnonzero(passes[alone:])).tolist():
            first = self._fill(ends, first, row)
            ends.append(row)
            first = row + 1
        first = self._fill(ends, first, len(numbers))
        self._alone -= alone
        self._held = len(numbers) - first
        self._period = int(periods[-1])
        return ends

    def _fill(self, ends: list[int], first: int, until: int) -> int:
        """End windows that are full before a row; returns where the next one begins."""
        while until - first >= self._every:
            first += self._every
            ends.append(first - 1)
        return first


class WindowPoints(NamedTuple):
    """What is logged of a window that is over.

    Attributes:
        step: its last step.
        end_ns: when that ended, of CLOCK_MONOTONIC.
        step_count: how many steps it held.
        points: tag and value; none for a metric that has no value in any step.
    """

    step: int
    end_ns: int
    step_count: int
    points: list[tuple[str, float]]


class StepWindows:
    """Windows of consecutive steps; those that end in a table are summed together.

    Memory: 0.3 kB for each step of the window that goes on, since a p95 needs every value, and one
    sum of kernel cells.

    Args:
        every_tag: whether metrics have points that TensorBoard shows on request only.
        counters: of the user's own programs; their parts by role are such metrics.
    """

    def __init__(self, every_tag: bool = False, counters: Sequence[OwnCounter] = ()) -> None:
        self._every_tag = every_tag
        self._counters = counters
        shown = _SHOWN[every_tag]
        self._kept = sorted({*shown, *_SPREAD[every_tag], *_PARTS, _DURATION, _WAIT})
        self._at = {place: row for row, place in enumerate(self._kept)}
        metrics = [STEP_METRICS[index] for index in shown]
        self._formulas = Formulas(m for m in metrics if m.kind is MetricKind.RATIO)
        self._values = np.empty((len(self._kept), 0))
        self._brought: dict[str, Floats] = {}
        self._cells: list[StepCells] = []
        self._latency: list[npt.NDArray[np.uint64]] = []

    def __len__(self) -> int:
        """Steps of the window that goes on."""
        return self._values.shape[1]

    def add(self, table: StepTable, ends: Sequence[int]) -> list[WindowPoints]:
        """Take steps; returns the windows that end at these of their rows."""
        held = len(self)
        values = np.concatenate([self._values, table.metric_rows[self._kept]], axis=1)
        brought = self._with(table.brought(), held, len(table))
        cells = self._cell_sums(table.cells, ends)
        latency = self._latency_sums(table.latency, ends)
        bounds = np.array([0, *(held + end + 1 for end in ends)])
        done = bounds[-1]
        self._values = values[:, done:].copy()
        self._brought = {name: column[done:].copy() for name, column in brought.items()}
        if not ends:
            return []
        count = np.diff(bounds)
        points = self._points(values[:, :done], bounds[:-1], count, cells, latency)
        self._add_own(points, brought, bounds)
        for steps, begin, own in zip(count.tolist(), bounds.tolist(), points, strict=False):
            if steps > 1:
                own += self._spreads(values[:, begin : begin + steps])
        last = np.array(ends)
        duration = np.nan_to_num(table.metric_rows[_DURATION][last]).astype(np.int64)
        about = table.step[last], table.start_ns[last] + duration, count
        return list(
            starmap(WindowPoints, zip(*(each.tolist() for each in about), points, strict=True))
        )

    def _with(self, brought: Mapping[str, Floats], held: int, more: int) -> dict[str, Floats]:
        """What the run brings along, of the window that goes on and of the next steps."""
        names = dict.fromkeys((*self._brought, *brought))
        before, now = np.full(held, np.nan), np.full(more, np.nan)
        return {
            name: np.concatenate([self._brought.get(name, before), brought.get(name, now)])
            for name in names
        }

    def _cell_sums(self, cells: StepCells | None, ends: Sequence[int]) -> StepCells | None:
        """Kernel cells of each window that ends; those of the one that goes on are kept."""
        if cells is None:
            return None
        joined = StepCells.join([*self._cells, cells])
        sums = _summed(joined.values, len(self._cells), ends)
        self._cells = [StepCells(joined.places, sums[len(ends) :])][: len(sums) - len(ends)]
        return StepCells(joined.places, sums[: len(ends)])

    def _latency_sums(
        self, latency: npt.NDArray[np.uint64] | None, ends: Sequence[int]
    ) -> npt.NDArray[np.uint64] | None:
        if latency is None:
            return None
        sums = _summed(np.concatenate([*self._latency, latency]), len(self._latency), ends)
        self._latency = [sums[len(ends) :]][: len(sums) - len(ends)]
        return sums[: len(ends)]

    def _points(
        self,
        values: Floats,
        first: npt.NDArray[np.int64],
        count: npt.NDArray[np.int64],
        cells: StepCells | None,
        latency: npt.NDArray[np.uint64] | None,
    ) -> list[list[tuple[str, float]]]:
        """Of each window the points of metrics, and of the share that waits for data."""
        is_known = ~np.isnan(values)
        known = np.add.reduceat(is_known, first, axis=1, dtype=np.intp)
        means = np.add.reduceat(np.where(is_known, values, 0.0), first, axis=1)
        means /= np.maximum(known, 1)
        ratios = self._formulas.evaluate(cells) if cells is not None else {}
        points: list[list[tuple[str, float]]] = [[] for _ in count]
        for index in _SHOWN[self._every_tag]:
            metric, row = STEP_METRICS[index], self._at[index]
            together = self._combined(metric, means, ratios, latency)
            column = np.where(count == 1, means[row], together) * metric.tag.factor
            for window in np.flatnonzero(known[row]).tolist():
                points[window].append((metric.tag.name, float(column[window])))
        waited, duration = values[self._at[_WAIT]], values[self._at[_DURATION]]
        finite = np.isfinite(waited)
        parts = np.where(finite, [waited, duration], 0.0)
        for own, (wait, whole) in zip(points, np.add.reduceat(parts, first, axis=1).T, strict=True):
            if whole > 0:
                own.append((WAITED, 100 * float(wait / whole)))
        return points

    def _combined(
        self,
        metric: Metric,
        means: Floats,
        ratios: Mapping[str, Floats],
        latency: npt.NDArray[np.uint64] | None,
    ) -> Floats:
        """Sums as their mean; ratios and quantiles from sums, so that busy steps weigh more."""
        if metric.name in ratios:
            return ratios[metric.name]
        if metric.name in SHARES:
            share = SHARES[metric.name]
            part, whole = (means[self._at[_PLACES[name]]] for name in (share.part, share.whole))
            return share.of(part, whole)
        if metric.kind is MetricKind.QUANTILE and latency is not None:
            return percentile(latency, 0.99)
        combined: Floats = means[self._at[_PLACES[metric.name]]]
        return combined

    def _add_own(
        self,
        points: list[list[tuple[str, float]]],
        brought: Mapping[str, Floats],
        bounds: npt.NDArray[np.int64],
    ) -> None:
        """Points of what the run brings along."""
        roles = None if self._every_tag else 1  # the first of a counter's metrics is the sum
        shown = {m.name: m for c in self._counters for m in metrics_of_counter(c)[:roles]}
        for name, values in brought.items():
            phase = named_phase(name)
            metric = metric_of_phase(phase) if phase else shown.get(name)
            for own, begin, end in zip(points, bounds, bounds[1:], strict=False):
                known = values[begin:end][np.isfinite(values[begin:end])]
                if metric and known.size:
                    own.append((metric.tag.name, float(known.mean()) * metric.tag.factor))

    def _spreads(self, values: Floats) -> Iterator[tuple[str, float]]:
        """p95 and maximum of each metric that has them, in one window."""
        spread = _SPREAD[self._every_tag]
        rows = values[[self._at[place] for place in spread]].T
        known = (~np.isnan(rows)).sum(axis=0)
        return _spreads(rows * _FACTORS[spread], known, spread)


def _summed(rows: npt.NDArray[np.uint64], held: int, ends: Sequence[int]) -> npt.NDArray[np.uint64]:
    """Sums of windows over rows (n, k); the last may be of one that goes on.

    Args:
        rows: those of steps, behind what is held.
        held: rows in front that are held of the window that goes on: 0 or 1.
        ends: where windows end, as rows of steps.
    """
    first = [0, *(held + end + 1 for end in ends)]
    sums: npt.NDArray[np.uint64] = np.add.reduceat(rows.T, [f for f in first if f < len(rows)], 1).T
    return sums


_SHOWN = {
    False: [index for index, metric in enumerate(STEP_METRICS) if metric.chart],
    True: list(range(len(STEP_METRICS))),
}
_SPREAD = {
    False: [_DURATION],
    True: [index for index, metric in enumerate(STEP_METRICS) if metric.spread],
}
"""Whether every tag is asked for -> places of the metrics with a point, and with p95 and max."""


def _spreads(
    values: npt.NDArray[np.float64], known: npt.NDArray[np.intp], places: list[int]
) -> Iterator[tuple[str, float]]:
    """95th percentile (linear, as numpy's) and maximum of each column; NaN sorts last."""
    ascending = np.sort(values, axis=0)
    last = np.maximum(known - 1, 0)
    place = 0.95 * last
    low = np.floor(place).astype(np.intp)
    columns = np.arange(len(known))
    below, above = ascending[low, columns], ascending[np.minimum(low + 1, last), columns]
    high = below + (above - below) * (place - low)
    for index in np.flatnonzero(known).tolist():
        name = STEP_METRICS[places[index]].tag.name
        yield f"{name}/p95", float(high[index])
        yield f"{name}/max", float(ascending[last[index], index])
