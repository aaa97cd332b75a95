"""Which steps are sampled: a fixed one of so many, or as many as a budget of time allows."""

from __future__ import annotations

import math

SPARSEST = 1025
"""Automatic sampling takes at least one of so many steps."""

DENSEST = 17
"""Automatic sampling takes at most one of so many steps.

An odd number, as all that are chosen: steps that take turns (two tasks, hot and mixed batches) do
so by a small even number more often than not, and would otherwise never all be sampled.
"""

BUDGET_RATIO = 0.02
"""Of the time of a step, what automatic sampling may cost all threads together."""

_MEMORY_RATIO = 0.25


class SamplingInterval:
    """Chooses the steps whose ids are looked at.

    `choose` is for the training thread, the rest for the observer's.

    Args:
        every: one of so many steps; None: automatic.
    """

    def __init__(self, every: int | None = None) -> None:
        self.every = every if every is not None else DENSEST
        self._automatic = every is None
        self._until_next = 0
        self._sample_ns = math.nan
        self._step_ns = math.nan

    def choose(self) -> bool:
        """Whether the step that begins is sampled; asked once a step."""
        if self._until_next > 0:
            self._until_next -= 1
            return False
        self._until_next = self.every - 1
        return True

    def stepped(self, step_ns: float) -> None:
        """How long a step took."""
        self._step_ns = _smooth(self._step_ns, step_ns)

    def sampled(self, cost_ns: float) -> None:
        """What sampling a step has cost, the training thread and the observer's together."""
        self._sample_ns = _smooth(self._sample_ns, cost_ns)
        if self._automatic and self._step_ns > 0:
            wanted = math.ceil(self._sample_ns / (BUDGET_RATIO * self._step_ns))
            self.every = max(DENSEST, min(SPARSEST, wanted | 1))


def _smooth(before: float, now: float) -> float:
    return now if math.isnan(before) else before + _MEMORY_RATIO * (now - before)
