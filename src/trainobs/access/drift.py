"""What an epoch loses when its hot rows are those of an epoch before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainobs.access.input_sample import InputSample, may_share
from trainobs.access.input_steps import STEPS_MIN
from trainobs.access.interval import normal_quantile
from trainobs.access.ranking import by_score
from trainobs.access.served_shares import STANDS_MAX
from trainobs.access.sketch import places
from trainobs.core.quotients import UNKNOWN, Interval

HALVES = 32
"""Random halves of a sample that are tried, to see how much a number depends on the sample."""
DRIFT_INPUTS_MIN = 16
OTHERS_MIN = 0.5
"""Of an epoch's inputs, the share that must have other lookups than those they are tried on."""


def drift(
    before: InputSample,
    after: InputSample,
    tables: Mapping[str, int],
    row_bytes: Mapping[str, int],
    budget_bytes: int,
    confidence: float = 0.95,
    *,
    by_steps: bool = False,
) -> Interval:
    """What an epoch loses when its hot rows are those of an epoch before.

    Half of the later epoch's inputs are set aside. Of their lookups two sets of hot rows serve a
    share: rows that are hot in the other half, and rows that are hot in as many inputs of the
    earlier epoch. The first share less the second is the drift. Both sets come from equally
    many inputs and neither from those they are tried on, nor, where these may have come again, from
    inputs with the same lookups: without drift it is 0 on average.

    Where some steps of the epochs were counted, inputs of a step may be alike, and make hot what
    they look up. So drift is measured between steps as well, of which half are set aside: that is
    less than the truth where neighbouring steps are alike, and the other is more. Drift is told
    where both agree, and where it surely exceeds that from one half of an epoch to the other. What
    more counts would find in addition is less than rows serve of the lookups that choose them.

    Args:
        before: sampled inputs of the earlier epoch.
        after: sampled inputs of the later one.
        tables: name -> rows, in the order of the `AccessCounts`.
        row_bytes: bytes of a row of each table.
        budget_bytes: for the hot rows of all tables. If the rows in the samples do not fill it, all
            of them are hot.
        confidence: of the interval, at least. It comes from the spread over random halves of the
            inputs, or steps, which is somewhat too wide: half as many choose worse.
        by_steps: whether some steps were counted.

    Returns:
        NaN with fewer than `DRIFT_INPUTS_MIN` inputs or `STEPS_MIN` steps on a side, and where so
        many have the same lookups (`OTHERS_MIN`) that nobody can tell which came again.
    """
    budget = _Budget(tables, row_bytes, budget_bytes, confidence)
    close = budget.loss(before, after, _parted(before, after, _inputs_at_random(before, after)))
    if not by_steps or math.isnan(close.value):
        return close
    if min(before.step_count, after.step_count) < STEPS_MIN:
        return UNKNOWN
    apart = budget.loss_between_steps(before, after)
    if math.isnan(apart.value) or close.value - apart.value > STANDS_MAX:
        return UNKNOWN
    low, high = min(apart.low, close.low), max(apart.high, close.high)
    if low <= 0:
        return Interval(apart.value, low, high) if high - low <= 2 * STANDS_MAX else UNKNOWN
    within = (budget.loss_between_steps(*_halves_of(one)).value for one in (before, after))
    if any(not loss <= low for loss in within):
        return UNKNOWN
    earlier, _, tried = _steps_at_random(before, after)
    most = budget.loss(before, after, (earlier, tried, tried), by_steps=True)
    return Interval(apart.value, low, max(high, most.high))


Parts = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]
"""Inputs of the earlier epoch, others of the later one, and those to try their rows on."""


def _inputs_at_random(before: InputSample, after: InputSample) -> Parts:
    earlier, own = np.argsort(before.draws), np.argsort(after.draws)
    half = min(len(earlier), len(own) // 2)
    return earlier, own[:half], own[half : 2 * half]


def _steps_at_random(before: InputSample, after: InputSample) -> Parts:
    """The inputs of as many steps of each, at random."""
    assert before.of_steps is not None
    assert after.of_steps is not None
    random = np.random.default_rng(len(after))
    old = random.permutation(np.unique(before.of_steps.steps))
    new = random.permutation(np.unique(after.of_steps.steps))
    half = min(len(old), len(new) // 2)
    return (
        _of_steps(before, old[:half]),
        _of_steps(after, new[:half]),
        _of_steps(after, new[half : 2 * half]),
    )


def _of_steps(sample: InputSample, steps: NDArray[np.int64]) -> NDArray[np.intp]:
    """Inputs of some steps, those that drew the least first."""
    assert sample.of_steps is not None
    order = np.argsort(sample.draws)
    return order[np.isin(sample.of_steps.steps[order], steps)]


def _parted(before: InputSample, after: InputSample, parts: Parts) -> Parts:
    """The same, without inputs that may be among those that are tried, and equally many."""
    earlier, own, tried = parts
    if may_share(before, after):
        contents = after.contents[tried[after.sizes[tried] > 0]]
        earlier = earlier[~np.isin(before.contents[earlier], contents)]
        own = own[~np.isin(after.contents[own], contents)]
    size = min(len(earlier), len(own))
    return earlier[:size], own[:size], tried


def _halves_of(sample: InputSample) -> tuple[InputSample, InputSample]:
    """The first and the second half of an epoch."""
    assert sample.of_steps is not None
    first = sample.of_steps.steps <= np.median(np.unique(sample.of_steps.steps))
    return sample.where(first), sample.where(~first)


@dataclass(frozen=True)
class _Budget:
    """What hot rows within some bytes lose."""

    tables: Mapping[str, int]
    row_bytes: Mapping[str, int]
    budget_bytes: int
    confidence: float

    def loss_between_steps(self, before: InputSample, after: InputSample) -> Interval:
        """What steps lose with the hot rows of earlier steps in the place of their own."""
        parts = _parted(before, after, _steps_at_random(before, after))
        return self.loss(before, after, parts, by_steps=True)

    def loss(
        self, before: InputSample, after: InputSample, chosen: Parts, *, by_steps: bool = False
    ) -> Interval:
        """What is lost; NaN of too few inputs."""
        size = len(chosen[0])
        if size < max(DRIFT_INPUTS_MIN, OTHERS_MIN * len(chosen[2])):
            return UNKNOWN
        rows = np.array(list(self.tables.values()), np.int64)
        widths = np.array([self.row_bytes[name] for name in self.tables], np.int64)
        earlier, own, tried = (
            _Keyed.from_sample(sample, inputs, rows, widths, by_steps=by_steps)
            for sample, inputs in zip((before, after, after), chosen, strict=True)
        )
        random = np.random.default_rng(size)
        halves = [
            self._lost(*(side.half(random) for side in (earlier, own, tried)))
            for _ in range(HALVES)
        ]
        value = self._lost(earlier, own, tried)
        half = normal_quantile(self.confidence) * float(np.std(halves, ddof=1))
        return Interval(value, value - half, value + half)

    def _lost(self, old: _Keyed, new: _Keyed, tried: _Keyed) -> float:
        served = [places(tried.keys, side.hottest(self.budget_bytes))[1] for side in (new, old)]
        gained = np.count_nonzero(served[0]) - np.count_nonzero(served[1])
        return float(gained / max(len(tried.keys), 1))


@dataclass(frozen=True)
class _Keyed:
    """Lookups of some inputs, as keys that are unique over all tables."""

    keys: NDArray[np.int64]
    widths: NDArray[np.int64]
    units: NDArray[np.int64]
    """Of each lookup, the number of its input, or of its step."""
    size: int
    """Units."""

    @classmethod
    def from_sample(
        cls,
        sample: InputSample,
        inputs: NDArray[np.intp],
        rows: NDArray[np.int64],
        widths: NDArray[np.int64],
        *,
        by_steps: bool,
    ) -> _Keyed:
        units = np.arange(len(inputs))
        if by_steps and sample.of_steps is not None:
            units = np.unique(sample.of_steps.steps[inputs], return_inverse=True)[1]
        number = np.full(len(sample), -1)
        number[inputs] = units
        numbers = np.repeat(number, sample.sizes)
        chosen = (numbers >= 0) & (sample.ids >= 0) & (sample.ids < rows[sample.tables])
        tables = sample.tables[chosen]
        keys = sample.ids[chosen] + (np.cumsum(rows) - rows)[tables]
        return cls(keys, widths[tables], numbers[chosen], int(units.max(initial=-1)) + 1)

    def half(self, random: np.random.Generator) -> _Keyed:
        """The lookups of half of the units."""
        kept = (random.permutation(self.size) < self.size // 2)[self.units]
        return _Keyed(self.keys[kept], self.widths[kept], self.units[kept], self.size // 2)

    def hottest(self, budget_bytes: int) -> NDArray[np.int64]:
        """Keys with most lookups for their bytes until the budget is full, ascending."""
        keys, first, counts = np.unique(self.keys, return_index=True, return_counts=True)
        widths = self.widths[first]
        order = by_score(counts / widths)
        fits = int(np.searchsorted(np.cumsum(widths[order]), budget_bytes, "right"))
        return np.sort(keys[order[:fits]])
