"""What hot rows served in each part of a run, and what others could at most."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def hot_rows(rank: RankLog, embeddings: dict[str, Any] | None) -> dict[str, Any] | None:
    """What hot rows served over the run; None if no step looked any up.

    Args:
        rank: whose steps they are.
        embeddings: see `analysis.tables.embeddings`.

    Returns:
        `held`: what hot rows take on the device, as `bytes` from `first_step` on: again where they
        were given up for others that take more or less. `parts`: of the run, each with its
        `first_step` and `last_step`, the `hot_lookup_ratio` and the `drift_ratio`.
        `at_most_ratio`: what the rows that this run looked up most served of
        the lookups that were counted, in as many bytes over all ranks, if they had no optimizer
        state: no rows that stay the same served more. What is unknown is None.
    """
    sums = rank.metrics({*_HOT[:2], *_DRIFT[:2], _HELD})
    steps = np.flatnonzero((rank.step() != SETUP) & (sums[_HOT.whole] > 0))
    if not len(steps):
        return None
    count = max(1, min(PARTS, len(steps) // LEAST_STEPS))
    numbers = rank.step()
    skew = (embeddings or {}).get("skew") or {}
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
        "at_most_ratio": (skew.get("hot_bytes") or {}).get("at_most_ratio"),
    }


def _held(held: Floats, numbers: NDArray[np.int64]) -> list[dict[str, int]]:
    known = np.isfinite(held)
    held, numbers = held[known], numbers[known]
    begins = np.flatnonzero(np.diff(held, prepend=-1.0))
    return [{"first_step": int(numbers[at]), "bytes": int(held[at])} for at in begins]


def _of(quotient: Quotient, sums: dict[str, Any], part: Any) -> float | None:
    hot, whole = (float(np.sum(sums[name][part])) for name in (quotient.part, quotient.whole))
    ratio = float(quotient.of(hot, whole))
    return ratio if math.isfinite(ratio) else None
