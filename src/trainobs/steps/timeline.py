"""What happened at times of its own, overlaid on the steps it happened in.

Others write into these from their own threads, at their own pace; the collector asks for columns
when steps are closed. All times are CLOCK_MONOTONIC in ns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainobs.core.quotients import divided
from trainobs.steps.closed_step import ClosedStep, ClosedSteps

MAX_POINTS = 65_536
"""Points that wait for their step to close; of more, the oldest are dropped."""

Columns = dict[str, npt.NDArray[np.float64]]


class StepSource(Protocol):
    """Fills columns of the record from elsewhere than the step clock and the kernel's rows."""

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        """Values by catalogue name, for consecutive closed steps; asked once for each step."""
        ...


class Spans:
    """Pauses and the like: their time and number in each step. A span counts where it ends.

    Args:
        time_name: metric for the time, ns.
        count_name: metric for the number.
    """

    def __init__(self, time_name: str, count_name: str) -> None:
        self._names = (time_name, count_name)
        self._points: deque[tuple[int, int]] = deque(maxlen=MAX_POINTS)

    def add(self, end_ns: int, duration_ns: int) -> None:
        """Take a span that is over."""
        self._points.append((end_ns, duration_ns))

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        """See `StepSource`."""
        ends = ClosedSteps.from_steps(steps).end_ns
        time_ns, count = np.zeros(len(steps)), np.zeros(len(steps))
        points, until = self._points, int(ends[-1])
        while points and points[0][0] < until:
            end_ns, duration_ns = points.popleft()
            # The first step takes what ended before it, too: a thread that lost its turn added it.
            index = int(np.searchsorted(ends, end_ns, "right"))
            time_ns[index] += duration_ns
            count[index] += 1
        return dict(zip(self._names, (time_ns, count), strict=True))


class Gauges:
    """Values that somebody reads now and then: a step has the mean of the readings inside it.

    A step without a reading inside has the last one before its end, unless that is too old.

    Args:
        names: metrics, in the order of `add`.
        fresh_ns: how long a reading stands for what comes after it.
    """

    def __init__(self, names: Sequence[str], fresh_ns: int) -> None:
        self._names = tuple(names)
        self._fresh_ns = fresh_ns
        self._points: deque[tuple[int, tuple[float, ...]]] = deque(maxlen=MAX_POINTS)

    def add(self, at_ns: int, values: Sequence[float]) -> None:
        """Take a reading; NaN for what could not be read."""
        self._points.append((at_ns, tuple(values)))

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        """See `StepSource`."""
        steps = ClosedSteps.from_steps(steps)
        points = self._taken(steps[-1].end_ns)
        if not points:
            return {name: np.full(len(steps), np.nan) for name in self._names}
        times = np.array([at_ns for at_ns, _ in points])
        values = np.array([reading for _, reading in points])
        ends = steps.end_ns
        first = np.searchsorted(times, steps.start_ns)
        last = np.searchsorted(times, ends)
        means = _means(values, first, last)
        before = np.maximum(last, 1) - 1
        held = (first == last) & (last > 0) & (ends - times[before] <= self._fresh_ns)
        table = np.where(held[:, None], values[before], means)
        return {name: table[:, index] for index, name in enumerate(self._names)}

    def _taken(self, end_ns: int) -> list[tuple[int, tuple[float, ...]]]:
        """Readings up to a time; the last of them stays, for steps to come."""
        points, taken = self._points, []
        while points and points[0][0] < end_ns:
            taken.append(points.popleft())
        if taken:
            points.appendleft(taken[-1])
        return taken


def _means(
    values: npt.NDArray[np.float64], first: npt.NDArray[np.intp], last: npt.NDArray[np.intp]
) -> npt.NDArray[np.float64]:
    """Mean of the rows from `first` to before `last` of each pair; NaN for none that is known."""
    known = ~np.isnan(values)
    start = np.zeros((1, values.shape[1]))
    counts = np.concatenate([start, known.cumsum(axis=0)])
    totals = np.concatenate([start, np.where(known, values, 0.0).cumsum(axis=0)])
    return divided(totals[last] - totals[first], counts[last] - counts[first])


class Totals:
    """Counters that somebody reads now and then: their growth is laid evenly between two readings.

    Nothing is lost: what they grew after the last reading counts in later steps, and each step has
    a whole number, the rest of which goes to the next.

    Args:
        names: metrics, in the order of `add`.
        ending: those that may tell why the last step was the last: what was read after a step, as
            it was asked for, is its own.
    """

    def __init__(self, names: Sequence[str], ending: Container[str] = ()) -> None:
        self._names, self._ending = tuple(names), ending
        self._points: deque[tuple[int, tuple[float, ...]]] = deque(maxlen=MAX_POINTS)
        self._told: tuple[float, ...] | None = None

    def add(self, at_ns: int, totals: Sequence[float]) -> None:
        """Take a reading, of values that never fall."""
        self._points.append((at_ns, tuple(totals)))

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        """See `StepSource`; NaN before the first reading."""
        points = list(self._points)
        if not points:
            return {name: np.full(len(steps), np.nan) for name in self._names}
        times = [at_ns for at_ns, _ in points]
        told = points[0][1] if self._told is None else self._told
        ends = ClosedSteps.from_steps(steps).end_ns
        columns = {}
        for index, name in enumerate(self._names):
            at_ends = np.floor(np.interp(ends, times, [totals[index] for _, totals in points]))
            if name in self._ending:
                at_ends = np.maximum(at_ends, told[index])
                at_ends[-1] = points[-1][1][index]
            columns[name] = np.diff(at_ends, prepend=told[index])
        self._told = tuple(told[i] + float(columns[n].sum()) for i, n in enumerate(self._names))
        while len(self._points) > 1 and self._points[1][0] <= ends[-1]:
            self._points.popleft()
        return columns
