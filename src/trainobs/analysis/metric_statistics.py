"""Statistics of metrics over the steps of a run, which come part by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from trainobs.core.metrics import Metric, MetricKind
from trainobs.verdict.metric_names import STEP

Floats = npt.NDArray[np.float64]


class Statistics(TypedDict):
    """What is told of one metric; None where it is unknown.

    Attributes:
        unit: of the values.
        sum: over the whole run, what came before the first step included; of a ratio None.
        mean, p50, p95, max: over steps.
    """

    unit: str
    sum: float | None
    mean: float | None
    p50: float | None
    p95: float | None
    max: float | None


_UNKNOWN = 2**32 - 1
"""Stands for NaN among numbers of 32 bits."""


class MetricStatistics:
    """Statistics of some metrics.

    Memory: 4 bytes for each step and metric that is known in it; percentiles need all of them.

    Args:
        metrics: the metrics; of gauges the mean is that over the time of steps, if these have one.

    Attributes:
        names: of these.
    """

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics
        self.names = [metric.name for metric in metrics]
        self._values: list[list[npt.NDArray[Any]]] = [[] for _ in metrics]
        self._rows = 0
        self._known = np.zeros(len(metrics), np.int64)
        self._sums, self._before, self._over_time, self._times = np.zeros((4, len(metrics)))

    def take(self, part: Mapping[str, Floats], training: npt.NDArray[np.bool_]) -> None:
        """Take the next rows of the table of steps.

        Args:
            part: name of a metric -> values (n,), NaN for unknown.
            training: which of these rows are steps, and not from before the first.
        """
        every = np.array([part[name] for name in self.names])
        is_known = np.isfinite(every)
        numbers = np.where(is_known, every, 0.0)
        self._rows += len(training)
        self._known += is_known.sum(axis=1)
        self._sums += numbers.sum(axis=1)
        self._before += numbers[:, ~training].sum(axis=1)
        times = np.nan_to_num(part[STEP] * training) if STEP in part else np.zeros(len(training))
        self._over_time += numbers @ times
        self._times += is_known @ times
        some = np.flatnonzero(is_known.any(axis=1))
        for index, values in zip(some.tolist(), _packed(every[some][:, training]), strict=True):
            self._values[index].append(values)

    def told(self) -> tuple[dict[str, Statistics], dict[str, int]]:
        """Statistics of each metric, and its sum from before the first step where that is not 0."""
        found = {metric.name: self._of(index) for index, metric in enumerate(self._metrics)}
        before = {
            metric.name: int(total)
            for metric, total in zip(self._metrics, self._before.tolist(), strict=True)
            if metric.kind is MetricKind.SUM and total
        }
        return found, before

    def _of(self, index: int) -> Statistics:
        metric, known = self._metrics[index], int(self._known[index])
        # Of what the kernel counts, some steps may be unknown: then so is what it was in all.
        enough = known == self._rows if metric.programs else known
        summed = metric.kind is MetricKind.SUM and self._rows and enough
        total = int(self._sums[index]) if summed else None
        steps = _unpacked(self._values[index])
        if not steps.size:
            return unknown(metric.unit, total)
        mean, most = float(steps.mean()), float(steps.max())
        if metric.kind is MetricKind.GAUGE and self._times[index]:
            mean = float(self._over_time[index] / self._times[index])
        p50, p95 = np.percentile(steps, (50, 95), overwrite_input=True).tolist()
        return {
            "unit": metric.unit,
            "sum": total,
            "mean": mean,
            "p50": p50,
            "p95": p95,
            "max": most,
        }


def unknown(unit: str, total: int | None = None) -> Statistics:
    """Of a metric that no step knows."""
    return {"unit": unit, "sum": total, "mean": None, "p50": None, "p95": None, "max": None}


def _packed(every: Floats) -> Iterator[npt.NDArray[Any]]:
    """Each row in half the memory, where no digit is lost."""
    is_known = np.isfinite(every)
    with np.errstate(invalid="ignore"):  # what is too large, which the next line sees
        counts = np.where(is_known, every, _UNKNOWN).astype(np.uint32)
    are_counts = ((counts == every) & (every < _UNKNOWN) | ~is_known).all(axis=1)
    halves = every.astype(np.float32)
    are_halves = ((halves == every) | ~is_known).all(axis=1)
    for row in range(len(every)):
        packed = counts if are_counts[row] else halves if are_halves[row] else every
        yield packed[row].copy()  # so that it keeps no other in memory


def _unpacked(parts: list[npt.NDArray[Any]]) -> Floats:
    """All that is known."""
    known = [part[part != _UNKNOWN] for part in parts if part.dtype == np.uint32]
    known += [part[np.isfinite(part)] for part in parts if part.dtype != np.uint32]
    return np.concatenate([np.empty(0), *known])
