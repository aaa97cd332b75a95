"""What the hot rows of a model's sharded modules did, step by step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from trainobs.core.catalogue.hot_rows import SHARES
from trainobs.core.hot_rows import HotTotals, ServesHotRows
from trainobs.core.quotients import divided
from trainobs.steps.closed_step import ClosedStep

MAX_READINGS = 4096
"""Steps that nobody has asked for yet; the oldest is let go."""

_SUMS = {
    "fae/lookup_count": "lookup_count",
    "fae/hot_lookup_count": "hot_lookup_count",
    "fae/expected_hot_count": "expected_hot_count",
    "fae/input_count": "input_count",
    "fae/pure_input_count": "pure_input_count",
    "fae/saved_bytes": "saved_bytes",
    "fae/sync_ns": "sync_ns",
}


class HotRowReadings:
    """Reads what modules say of their hot rows as each step ends: numbers of the host.

    Args:
        modules: those with hot rows, at least one.
        serial: the serial of the step that runs, which these count for from now on.
    """

    def __init__(self, modules: Iterable[ServesHotRows], serial: Callable[[], int]) -> None:
        self._modules = tuple(modules)
        self._readings: OrderedDict[int, HotTotals] = OrderedDict()
        self.stepped(serial() - 1)

    def stepped(self, serial: int) -> None:
        """A step is over; for the thread that trains."""
        totals = [module.totals() for module in self._modules]
        self._readings[serial] = HotTotals(*map(sum, zip(*totals, strict=True)))
        if len(self._readings) > MAX_READINGS:
            self._readings.popitem(last=False)

    def columns(self, steps: Sequence[ClosedStep]) -> dict[str, NDArray[np.float64]]:
        """Values by catalogue name, for consecutive closed steps; for the observer's thread."""
        grown = np.array([self._grown(step.serials) for step in steps])
        of = dict(zip(HotTotals._fields, grown.T, strict=True))
        columns = {name: of[field] for name, field in _SUMS.items()}
        for name, share in SHARES.items():
            columns[name] = share.of(columns[share.part], columns[share.whole])
        pure = divided(of["pure_batch_count"], of["batch_count"])
        duration_ns = np.array([step.end_ns - step.start_ns for step in steps], np.float64)
        columns["fae/pure_step"] = np.where(np.isnan(pure), np.nan, pure == 1)
        columns["fae/pure_step_ns"] = np.where(pure == 1, duration_ns, np.nan)
        columns["fae/mixed_step_ns"] = np.where(pure < 1, duration_ns, np.nan)
        columns["fae/hot_bytes"], columns["fae/all_hot_bytes"] = (
            of["hot_bytes"],
            of["all_hot_bytes"],
        )
        return columns

    def _grown(self, serials: Sequence[int]) -> list[float]:
        """What came in a step; NaN where its begin or end was not read."""
        before, *_ = [self._readings.pop(serial - 1, None) for serial in serials]
        after = self._readings.get(serials[-1])
        if before is None or after is None:
            return [np.nan] * len(HotTotals._fields)
        grown = [float(a) - float(b) for a, b in zip(after, before, strict=True)]
        return [*grown[:-2], float(after.hot_bytes), float(after.all_hot_bytes)]
