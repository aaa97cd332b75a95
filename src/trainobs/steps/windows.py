"""What was measured over windows of time, overlaid on the steps in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trainobs.steps.closed_step import ClosedStep, ClosedSteps
from trainobs.steps.timeline import MAX_POINTS, Columns


class Windows:
    """Values that hold over a window of time: a step has the mean of the windows it lies in.

    A window weighs with the time that it shares with the step. Amounts are by the second in a
    window, and become what the step had of them: their mean times its length.

    Args:
        levels: metrics, in the order of `add`.
        amounts: metrics after them.
        fresh_ns: how long the last window stands for steps after it.

    Attributes:
        live: whether more windows are to come.
    """

    def __init__(self, levels: Sequence[str], amounts: Sequence[str], fresh_ns: int) -> None:
        self._names = (*levels, *amounts)
        self._levels_count = len(levels)
        self._fresh_ns = fresh_ns
        self._windows: deque[tuple[int, int, tuple[float, ...]]] = deque(maxlen=MAX_POINTS)
        self._known_ns = 0
        self.live = False

    def add(self, begin_ns: int, end_ns: int, values: Sequence[float]) -> None:
        """Take a window that is over; NaN for what is not known of it."""
        self._windows.append((begin_ns, end_ns, tuple(values)))
        self._known_ns = end_ns

    def ready(self, step: ClosedStep) -> bool:
        """Whether all windows that a step lies in are known; it is worth waiting for them."""
        return not self.live or self._known_ns >= step.end_ns

    def columns(self, steps: Sequence[ClosedStep]) -> Columns:
        """See `StepSource`."""
        if not self._windows and not self.live:
            return {}
        table = np.full((len(steps), len(self._names)), np.nan)
        windows = self._taken(steps[-1].end_ns)
        if windows:
            spans = np.array([window[:2] for window in windows], np.int64)
            values = np.array([window[2] for window in windows])
            for row, step in enumerate(steps):
                table[row] = self._of(step, spans, values)
        steps = ClosedSteps.from_steps(steps)
        seconds = (steps.end_ns - steps.start_ns) / 1e9
        table[:, self._levels_count :] *= seconds[:, None]
        return {name: table[:, index] for index, name in enumerate(self._names)}

    def _taken(self, end_ns: int) -> list[tuple[int, int, tuple[float, ...]]]:
        """Windows known by now; those that reach beyond a time stay, and the last of the others."""
        windows = [self._windows.popleft() for _ in range(len(self._windows))]
        before = sum(window[1] <= end_ns for window in windows)
        self._windows.extendleft(reversed(windows[max(0, before - 1) :]))
        return windows

    def _of(
        self, step: ClosedStep, spans: npt.NDArray[np.int64], values: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64] | float:
        shared = np.minimum(spans[:, 1], step.end_ns) - np.maximum(spans[:, 0], step.start_ns)
        inside = shared > 0
        if inside.any():
            weights = np.where(np.isnan(values[inside]), 0.0, shared[inside, None])
            total, sums = weights.sum(axis=0), (weights * np.nan_to_num(values[inside])).sum(axis=0)
            return np.where(total > 0, sums / np.maximum(total, 1), np.nan)
        last = int(np.searchsorted(spans[:, 1], step.end_ns, "right")) - 1
        if last >= 0 and step.end_ns - spans[last, 1] <= self._fresh_ns:
            held: npt.NDArray[np.float64] = values[last]
            return held
        return np.nan
