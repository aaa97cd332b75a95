"""Ratios of two sums, what they are where nothing divides them, and how sure they are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def divided(part: npt.ArrayLike, whole: npt.ArrayLike) -> Floats:
    """`part / whole`, element by element; NaN where the whole is zero or not known."""
    part, whole = np.asarray(part, np.float64), np.asarray(whole, np.float64)
    result: Floats = np.full(np.broadcast_shapes(part.shape, whole.shape), np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result


class Quotient(NamedTuple):
    """How a ratio is formed from two other numbers of the record.

    Attributes:
        part: name of what is above the line.
        whole: of what is below it.
        complement: whether it is one minus that.
    """

    part: str
    whole: str
    complement: bool = False

    def of(self, part: npt.ArrayLike, whole: npt.ArrayLike) -> Floats:
        """The ratio of these values, as `divided`."""
        ratio = divided(part, whole)
        return 1.0 - ratio if self.complement else ratio


class Interval(NamedTuple):
    """An estimate with its bounds; NaN where nothing is known.

    Attributes:
        value: the estimate.
        low: lower bound.
        high: upper bound.
    """

    value: float
    low: float
    high: float


UNKNOWN = Interval(np.nan, np.nan, np.nan)
