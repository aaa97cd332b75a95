"""Predictions: the ratio of two replays, as an interval, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainobs.replay.changes import Change, with_changes
from trainobs.replay.simulate import simulate
from trainobs.replay.trace import Trace

WITHIN = 0.10
"""How far the replay of the run as it was may be off; more, if the run itself is as uneven."""

LEAST_MARGIN = 0.03
"""Of every prediction: runs of the same training differ by that on a quiet machine."""

MODELS = (True, False)
"""Whether the device is shared: of an unknown one, both may be right."""


class Prediction(NamedTuple):
    """What a step would take.

    Attributes:
        low: least, ns.
        high: most, ns.
        gain: least and most speed-up over the run as it was.
    """

    low: float
    high: float
    gain: tuple[float, float]


class Replay:
    """The replay of a run, which first has to bring forth the run as it was.

    Args:
        trace: of the run.

    Attributes:
        refused: why nothing is predicted, or None.
        fit: replayed time of a step over the measured one.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._base = {shared: self._mean(trace, shared) for shared in MODELS}
        self._models = tuple(m for m in MODELS if self._off(m) <= self._tolerance())
        self.fit = self._base[True] / trace.step_ns
        self.refused: str | None = None
        if not self._models:
            self.refused = (
                f"the replay of the run as it was takes {self.fit:.2f} times as long as the run"
            )

    def gain(self, trace: Trace) -> float:
        """Speed-up if the run were another trace: the least, over the models that fit."""
        return min(self._base[m] / max(1.0, self._mean(trace, m)) for m in self._models)

    def predict(self, changes: Sequence[Change]) -> Prediction:
        """What a step takes after some changes; only where nothing is `refused`."""
        measured = self.trace.step_ns
        found = [
            (self._mean(after, model) / self._base[model], self._off(model))
            for after in with_changes(self.trace, changes)
            for model in self._models
        ]
        low = min(ratio * (1 - _margin(ratio, off)) for ratio, off in found)
        high = max(ratio * (1 + _margin(ratio, off)) for ratio, off in found)
        return Prediction(low * measured, high * measured, (1 / high, 1 / low))

    def _mean(self, trace: Trace, shared: bool) -> float:
        steps = simulate(trace, shared=shared)
        return float(steps[self.trace.settled].mean())

    def _off(self, shared: bool) -> float:
        return abs(self._base[shared] / self.trace.step_ns - 1.0)

    def _tolerance(self) -> float:
        """As far as halves of the run differ, but no more than twice what is allowed anyway."""
        steps = self.trace.step[self.trace.settled]
        quarters = [part.mean() for part in np.array_split(steps, 4)]
        spread = float(np.std(quarters) / steps.mean())
        return min(2 * WITHIN, max(WITHIN, spread))


def _margin(ratio: float, off: float) -> float:
    """Of a ratio of two replays: what the replay is off by weighs as far as it changes anything."""
    return LEAST_MARGIN + off * min(1.0, 2 * abs(1.0 - ratio))
