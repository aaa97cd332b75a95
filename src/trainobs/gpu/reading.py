"""What was read of a GPU over one window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainobs.core.catalogue.gpu import AMOUNTS, LEVELS

LEVEL_NAMES = tuple(metric.name for metric in LEVELS)
AMOUNT_NAMES = tuple(metric.name for metric in AMOUNTS)


@dataclass(frozen=True)
class Reading:
    """Values that hold over a window; times in ns of CLOCK_MONOTONIC.

    Attributes:
        values: catalogue name -> value; amounts by the second. What was not read is not there.
    """

    begin_ns: int
    end_ns: int
    values: Mapping[str, float]
