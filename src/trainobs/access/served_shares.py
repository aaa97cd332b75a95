"""What hot rows serve of all steps of a run, of which some were counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainobs.access.input_sample import InputSample
from trainobs.access.input_steps import STEPS_MIN, TOO_FEW_STEPS
from trainobs.access.interval import trials_by_steps, wilson_around
from trainobs.core.quotients import UNKNOWN, Interval

STANDS_MAX = 0.1
"""What a share may lose without a step's own lookups, where others stand for that step."""

_APART = (
    "steps look up the same rows less often than the lookups of one step do, so that nobody knows "
    "what the steps between two that were counted look up"
)
_NO_INPUTS = "no whole inputs are known, with which steps could be compared"


@dataclass(frozen=True)
class ServedShares:
    """What hot rows serve of inputs that had no part in choosing them.

    Attributes:
        lookups: share of lookups. NaN without any. Bounds are known where some steps were counted:
            more than the upper one is served by no rows that fit.
        all_hot: share of inputs all of whose lookups are of hot rows.
        input_count: sampled inputs that tell it.
        why: why one of them is not known, where the counted steps do not stand for the others.
    """

    lookups: Interval
    all_hot: Interval
    input_count: int
    why: str | None = None

    @property
    def lookup_ratio(self) -> float:
        """Share of lookups; NaN where it is not known."""
        return self.lookups.value


def whole(sample: InputSample, hot: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether all lookups of each input are hot."""
    inputs = np.repeat(np.arange(len(sample)), sample.sizes)
    return np.asarray(np.bincount(inputs[~hot], minlength=len(sample)) == 0)


class Judged(NamedTuple):
    """Whether each lookup of a sample is hot, or how many of each input are.

    Attributes:
        all: by all lookups, itself included.
        close: by all others.
        apart: by those of other steps.
    """

    all: NDArray[Any]
    close: NDArray[Any]
    apart: NDArray[Any]


class Known(NamedTuple):
    """What hot rows serve of all lookups that were counted, judged in two ways of `Judged`."""

    all: float
    close: float


def of_all_steps(
    sample: InputSample,
    weights: NDArray[np.float64],
    hot: Judged,
    known: Known,
    counted_ratio: float,
    confidence: float,
) -> ServedShares:
    """What hot rows serve of all steps, at least, and what any rows that fit do, at most.

    Args:
        sample: inputs of steps that were counted.
        weights: inputs that each of them stands for.
        hot: whether the lookups of the sample are.
        known: of all lookups that were counted.
        counted_ratio: share of the steps that were.
        confidence: of the intervals.
    """
    if not len(sample) or sample.of_steps is None:
        return ServedShares(UNKNOWN, UNKNOWN, len(sample), _NO_INPUTS)
    if sample.step_count < STEPS_MIN:
        return ServedShares(UNKNOWN, UNKNOWN, len(sample), TOO_FEW_STEPS)
    inputs = np.repeat(np.arange(len(sample)), sample.sizes)
    of_inputs = Judged(*(weights * np.bincount(inputs[one], minlength=len(sample)) for one in hot))
    between = _Between(sample.of_steps.steps, counted_ratio, confidence)
    lookups = between.share(of_inputs, weights * sample.sizes, known)
    all_hot = between.share(Judged(*(weights * whole(sample, one) for one in hot)), weights)
    if np.isnan(lookups.value):
        all_hot = UNKNOWN
    why = _APART if np.isnan(all_hot.value) else None
    return ServedShares(lookups, all_hot, len(sample), why)


class _Between(NamedTuple):
    """Shares of all steps, from those that were counted."""

    steps: NDArray[np.int64]
    counted_ratio: float
    confidence: float

    def share(
        self, parts: Judged, wholes: NDArray[np.float64], known: Known | None = None
    ) -> Interval:
        """What rows serve.

        Steps that were counted have the rows that `all` says; others have those of `apart` at
        least. No rows that fit serve more than those that were chosen do of what chose them, on
        average. What is `known` of more than the sample loses as much as the sample does (a
        difference estimator: Cochran, sec. 7.3).
        """
        total = float(wholes.sum())
        if not total:
            return UNKNOWN
        every, close, apart = (float(part.sum()) / total for part in parts)
        if close - apart > STANDS_MAX:
            return UNKNOWN
        low = self._wilson(apart, apart, parts.apart, wholes).low
        if known is not None:
            others = max(0.0, known.close - (close - apart))
            low = self._wilson(others, apart, parts.apart, wholes).low
            every, apart = known.all, others
        value = apart + self.counted_ratio * (every - apart)
        high = self._wilson(every, float(parts.all.sum()) / total, parts.all, wholes).high
        return Interval(value, low + self.counted_ratio * (every - apart), high)

    def _wilson(
        self, share: float, of_sample: float, parts: NDArray[Any], wholes: NDArray[np.float64]
    ) -> Interval:
        trials = trials_by_steps(of_sample, parts, wholes, self.steps, self.confidence)
        return wilson_around(share, trials, self.confidence)
