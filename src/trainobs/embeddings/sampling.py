"""Which steps are sampled: one of so many, at random, or as many as a budget of time allows."""

from __future__ import annotations

import math
from random import Random

SPARSEST = 1025
"""Automatic sampling takes at least one of so many steps, on all ranks together."""

DENSEST = 17
"""Automatic sampling takes at most one of so many steps."""

BUDGET_RATIO = 0.02
"""Of the time of a step, what automatic sampling may cost: all threads, and all ranks, together.
Ranks wait for each other, and so each for the samples of all."""

_MEMORY_RATIO = 0.25

_SEED = 0x737465707320


class SamplingInterval:
    """Chooses the steps whose ids are looked at.

    Steps come in strides of `every`, and of each stride one is sampled, at random: stratified
    sampling with one unit a stratum (W. G. Cochran, Sampling Techniques, 3rd ed., sec. 8.11). So
    a pattern of the loader, such as another kind of batch each eighth step, is met as often as it
    is there. Numbers come from a generator of its own, and are the same in each run.

    `choose` is for the training thread, the rest for the observer's.

    Args:
        every: one of so many steps; None: automatic.
        rank: ranks sample other steps each, so that together they see more of them.
        world_size: ranks of the job.
    """

    def __init__(self, every: int | None = None, rank: int = 0, world_size: int = 1) -> None:
        self._world_size = world_size
        self.every = every if every is not None else DENSEST
        self._automatic = every is None
        self._random = Random(_SEED + rank)
        self._stride_left = 0
        self._until_next = 0
        self._enter_stride()
        self._sample_ns = math.nan
        self._step_ns = math.nan

    def choose(self) -> bool:
        """Whether the step that begins is sampled; asked once a step."""
        if self._until_next > 0:
            self._until_next -= 1
            return False
        self._enter_stride()
        return True

    def _enter_stride(self) -> None:
        """Draw the next step; until then what is left of this stride goes by, too."""
        length = self.every
        place = self._random.randrange(length)
        self._until_next = self._stride_left + place
        self._stride_left = length - 1 - place

    def stepped(self, step_ns: float) -> None:
        """How long a step took."""
        self._step_ns = _smooth(self._step_ns, step_ns)

    def sampled(self, cost_ns: float) -> None:
        """What sampling a step has cost, the training thread and the observer's together."""
        self._sample_ns = _smooth(self._sample_ns, cost_ns)
        if self._automatic and self._step_ns > 0:
            cost_ns = self._sample_ns * self._world_size
            wanted = math.ceil(cost_ns / (BUDGET_RATIO * self._step_ns))
            self.every = max(DENSEST, min(SPARSEST * self._world_size, wanted))


def _smooth(before: float, now: float) -> float:
    return now if math.isnan(before) else before + _MEMORY_RATIO * (now - before)
