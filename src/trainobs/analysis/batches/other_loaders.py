"""Loaders that give steps no batches, as for a validation: what a change of them can be worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainobs.core.records import SETUP
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import BATCHES
from trainobs.verdict.metric_names import STEP

LITTLE = 0.2
"""Share of all time below which a replay of the training loader tells, whatever the others do."""

_FIRST = 0.1
"""Share of its batches with which a step begins, from which on a loader is a training one."""

_BATCH = ("for_step", "loader", "begin_ns", "end_ns", "fetch_begin_ns", "fetch_end_ns")


class OtherLoaderShares(NamedTuple):
    """What all but the training loader take of the time of all steps.

    Attributes:
        waited: share in which they were waited for: what a change of them saves at most.
        made: share that it took to make their batches: what is waited for without workers.
    """

    waited: float
    made: float

    def widen(self, low: float, high: float) -> tuple[float, float]:
        """Least and most gain of a change, whatever becomes of these."""
        slower = 1 / low + max(0.0, self.made - self.waited)
        faster = 1 / high - self.waited  # at most `LITTLE` is taken off
        return 1 / slower, 1 / max(faster, 0.1 / high)


def others(run: RunLog, own: Mapping[str, Any] | None) -> OtherLoaderShares | None:
    """What the other loaders of a run take; None where it is not known, or too much.

    Args:
        run: the run; of several ranks, the one that it tells of.
        own: what is recorded of the loader that is taken for the training one.
    """
    rank = run.rank
    if own is None:
        return None
    batches = rank.columns(BATCHES, _BATCH)
    trains = _training(batches)
    is_other = ~np.isin(batches["loader"], list(trains))
    took = float(np.nansum(rank.metric(STEP)[rank.step() != SETUP]))
    if own.get("serial") not in trains or not is_other.any() or not took:
        return None
    rows = {name: np.asarray(batches[name], np.float64)[is_other] for name in _BATCH}
    if min(rows[name].min() for name in _BATCH[2:]) < 0:  # unknown
        return None
    waited = float((rows["fetch_end_ns"] - rows["fetch_begin_ns"]).sum()) / took
    made = float((rows["end_ns"] - rows["begin_ns"]).sum()) / took
    return OtherLoaderShares(waited, made) if max(waited, made) <= LITTLE else None


def _training(batches: Mapping[str, npt.NDArray[Any]]) -> set[int]:
    """The passes over loaders that give the first batch of steps."""
    asked, step = batches["fetch_begin_ns"], batches["for_step"]
    order = np.lexsort((asked, step))
    order = order[step[order] >= 0]
    first = order[np.diff(step[order], prepend=-1) > 0]
    loaders, counts = np.unique(batches["loader"], return_counts=True)
    begins = {int(loader): int((batches["loader"][first] == loader).sum()) for loader in loaders}
    of = dict(zip(loaders.tolist(), counts.tolist(), strict=True))
    return {loader for loader, count in begins.items() if count and count >= _FIRST * of[loader]}
