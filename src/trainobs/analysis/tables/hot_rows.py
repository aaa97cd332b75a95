"""What hot rows served in each part of a run, and what others could at most."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from trainobs.analysis.tables.skew import Skew
from trainobs.core.catalogue.hot_rows import SHARES
from trainobs.core.quotients import Floats, Quotient
from trainobs.core.records import SETUP
from trainobs.runlog.rank import RankLog

PARTS = 8
"""Parts of equal numbers of steps that a run is cut into."""

LEAST_STEPS = 20
"""Steps of a part: pure and mixed ones come in turn, so that few of them say little."""

_HELD = "fae/hot_bytes"
_HOT, _DRIFT = SHARES["fae/hot_lookup_ratio"], SHARES["fae/drift_ratio"]


def all_hot_bytes(rank: RankLog, world_size: int) -> int | None:
    """Bytes of all hot rows, each once, with optimizer state, at most in the run.

    None without any, and of several ranks in a log that does not say what all of them have.
    """
    held = rank.metric(_HELD if world_size == 1 else "fae/all_hot_bytes")
    known = held[np.isfinite(held)]
    return int(known.max()) if len(known) else None


class Held(TypedDict):
    """What hot rows take on the device from a step on."""

    first_step: int
    bytes: int


class RunPart(TypedDict):
    """What hot rows served in some steps; None where unknown."""

    first_step: int
    last_step: int
    hot_lookup_ratio: float | None
    drift_ratio: float | None


class HotRows(TypedDict):
    """What hot rows served over a run.

    Attributes:
        held: again where they were given up for others that take more or less.
        parts: of the run.
        at_most_ratio: what the rows that this run looked up most served of the lookups that were
            counted, in as many bytes over all ranks, if they had no optimizer state: no rows that
            stay the same served more. None where unknown.
    """

    held: list[Held]
    parts: list[RunPart]
    at_most_ratio: float | None


def hot_rows(rank: RankLog, skew: Skew | None) -> HotRows | None:
    """What hot rows served over the run; None if no step looked any up.

    Args:
        rank: whose steps they are.
        skew: of the lookups of this run, where these were counted.
    """
    sums = rank.metrics({*_HOT[:2], *_DRIFT[:2], _HELD})
    steps = np.flatnonzero((rank.step() != SETUP) & (sums[_HOT.whole] > 0))
    if not len(steps):
        return None
    count = max(1, min(PARTS, len(steps) // LEAST_STEPS))
    numbers = rank.step()
    budget = skew["hot_bytes"] if skew else None
    return {
        "held": _held(sums[_HELD][steps], numbers[steps]),
        "parts": [
            {
                "first_step": int(numbers[part[0]]),
                "last_step": int(numbers[part[-1]]),
                "hot_lookup_ratio": _of(_HOT, sums, part),
                "drift_ratio": _of(_DRIFT, sums, part),
            }
            for part in np.array_split(steps, count)
        ],
        "at_most_ratio": budget["at_most_ratio"] if budget else None,
    }


def _held(held: Floats, numbers: NDArray[np.int64]) -> list[Held]:
    known = np.isfinite(held)
    held, numbers = held[known], numbers[known]
    begins = np.flatnonzero(np.diff(held, prepend=-1.0))
    return [{"first_step": int(numbers[at]), "bytes": int(held[at])} for at in begins]


def _of(quotient: Quotient, sums: Mapping[str, Floats], part: Any) -> float | None:
    hot, whole = (float(np.sum(sums[name][part])) for name in (quotient.part, quotient.whole))
    ratio = float(quotient.of(hot, whole))
    return ratio if math.isfinite(ratio) else None
