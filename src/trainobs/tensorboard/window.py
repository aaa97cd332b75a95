"""The steps between two points in TensorBoard, and the numbers that stand for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from trainobs.core.catalogue import STEP_METRICS
from trainobs.core.catalogue.hot_rows import SHARES
from trainobs.core.catalogue.named import metric_of_phase, named_phase
from trainobs.core.catalogue.own_counters import metrics_of_counter
from trainobs.core.cells import StepCells
from trainobs.core.histogram import percentile
from trainobs.core.metrics import TAGS, Metric, MetricKind, evaluate
from trainobs.core.own_counter import OwnCounter
from trainobs.core.records import StepTable

STEPS_ALONE = 200
"""The first steps of a run, each of which has a point: a run of 24 has a curve, not one point."""

WAITED = f"{TAGS}loader/wait_percent"
"""Tag of the share of the step that waits for data."""

_PLACES = {metric.name: index for index, metric in enumerate(STEP_METRICS)}
_DURATION, _WAIT = _PLACES["step/duration_ns"], _PLACES["loader/wait_ns"]
_FACTORS = np.array([metric.tag.factor for metric in STEP_METRICS])


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
        ends = []
        for row, number in enumerate((numbers - self._first_step).tolist()):
            # A run that resumes has logged the steps before its first.
            before = number // self._every if self._period is None else self._period
            self._period = (number + 1) // self._every
            self._held += 1
            if self._alone or self._period != before or self._held >= self._every:
                ends.append(row)
                self._alone = max(0, self._alone - 1)
                self._held = 0
        return ends


class Window:
    """Consecutive steps.

    Memory: 0.5 kB a step, since a p95 needs every value; kernel cells are summed as they come.

    Args:
        every_tag: whether metrics have points that TensorBoard shows on request only.
        counters: of the user's own programs; their parts by role are such metrics.
    """

    def __init__(self, every_tag: bool = False, counters: Sequence[OwnCounter] = ()) -> None:
        self._every_tag = every_tag
        self._counters = counters
        self._values: list[npt.NDArray[np.float64]] = []
        self._cells: StepCells | None = None
        self._latency: npt.NDArray[np.uint64] | None = None
        self._brought: dict[str, list[npt.NDArray[np.float64]]] = {}
        self.last_step = 0
        self.end_ns = 0

    def __len__(self) -> int:
        return sum(len(values) for values in self._values)

    def add(self, batch: StepTable, matrix: npt.NDArray[np.float64], rows: slice) -> None:
        """Take some steps of a batch, at least one; `matrix` is its `metric_matrix`."""
        self._values.append(matrix[rows])
        for name, column in batch.brought().items():
            self._brought.setdefault(name, []).append(column[rows])
        if batch.cells is not None:
            summed = batch.cells[rows].total()
            before = [] if self._cells is None else [self._cells]
            self._cells = StepCells.join([*before, summed]).total()
        if batch.latency is not None:
            buckets = batch.latency[rows].sum(axis=0, dtype=np.uint64)
            self._latency = buckets if self._latency is None else self._latency + buckets
        self.last_step = int(batch.step[rows][-1])
        duration = matrix[rows, _DURATION][-1]
        self.end_ns = int(batch.start_ns[rows][-1]) + int(np.nan_to_num(duration))

    def scalars(self) -> Iterator[tuple[str, float]]:
        """Tag and value of each point; nothing for a metric that has no value in any step."""
        matrix = np.concatenate(self._values)
        is_known = ~np.isnan(matrix)
        known = is_known.sum(axis=0)
        means = np.where(is_known, matrix, 0.0).sum(axis=0) / np.maximum(known, 1)
        for index in _SHOWN[self._every_tag]:
            if known[index]:
                metric = STEP_METRICS[index]
                value = means[index] if len(matrix) == 1 else self._combined(metric, means)
                yield metric.tag.name, float(value) * metric.tag.factor
        waited = np.isfinite(matrix[:, _WAIT])
        duration = matrix[waited, _DURATION].sum()
        if duration > 0:
            yield WAITED, 100 * float(matrix[waited, _WAIT].sum() / duration)
        yield from self._own_scalars()
        if len(matrix) > 1:
            spread = _SPREAD[self._every_tag]
            yield from _spreads(matrix[:, spread] * _FACTORS[spread], known[spread], spread)

    def _own_scalars(self) -> Iterator[tuple[str, float]]:
        """Points of what the run brings along."""
        shown = {m.name: m for c in self._counters for m in metrics_of_counter(c)[: self._roles]}
        for name, columns in self._brought.items():
            phase, values = named_phase(name), np.concatenate(columns)
            metric = metric_of_phase(phase) if phase else shown.get(name)
            known = values[np.isfinite(values)]
            if metric and known.size:
                yield metric.tag.name, float(known.mean()) * metric.tag.factor

    @property
    def _roles(self) -> int | None:
        """How many of the metrics of a counter are shown: the first is the sum."""
        return None if self._every_tag else 1

    def _combined(self, metric: Metric, means: npt.NDArray[np.float64]) -> float:
        """Sums as their mean; ratios and quantiles from sums, so that busy steps weigh more."""
        if (
            metric.kind is MetricKind.RATIO
            and metric.formula is not None
            and self._cells is not None
        ):
            return float(evaluate(metric, self._cells)[0])
        if metric.name in SHARES:
            share = SHARES[metric.name]
            return float(share.of(means[_PLACES[share.part]], means[_PLACES[share.whole]]))
        if metric.kind is MetricKind.QUANTILE and self._latency is not None:
            return float(percentile(self._latency, 0.99))
        return float(means[_PLACES[metric.name]])


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
