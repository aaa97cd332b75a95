"""Points of training data, but where what was read of it is unknown: see `core.unnamed_reads`."""

from __future__ import annotations

import numpy as np

from trainobs.core.abi import CELLS_SHAPE, FIELDS, FileClass
from trainobs.core.cells import WORDS
from trainobs.core.records import SETUP, StepTable
from trainobs.core.unnamed_reads import METRICS_OF_DATA, unnamed_in

_TAGS = frozenset(
    metric.tag.name + statistic for metric in METRICS_OF_DATA for statistic in ("", "/p95", "/max")
)
_SHAPE = (*CELLS_SHAPE, len(FIELDS))
_COUNT, _BYTES = FIELDS.index("count"), FIELDS.index("bytes")


class KnownData:
    """Takes the steps of a run, and of points leaves out those that are unknown by then."""

    def __init__(self) -> None:
        self._sums = np.zeros(WORDS, np.uint64)
        self._setup = np.zeros(WORDS, np.uint64)
        self._steps = 0
        self._is_unknown = self._waited = False

    def take(self, table: StepTable, *, named: bool) -> None:
        """Take the next steps.

        Args:
            table: these, with what came before the first.
            named: whether somebody named the training data.
        """
        if table.cells is None:
            return
        places, values = table.cells.places, table.cells.values
        setup = values[table.step == SETUP].sum(axis=0)
        self._sums[places] += values.sum(axis=0) - setup
        self._setup[places] += setup
        self._steps += table.step_count
        self._waited |= bool(np.isfinite(table.columns.get("loader/wait_ns", np.nan)).any())
        moved = self._sums.reshape(_SHAPE)[..., _BYTES]
        self._is_unknown = not (named and self._has_read_data()) and (
            unnamed_in(moved, self._steps, named=named, waited=self._waited) is not None
        )

    def of(self, points: list[tuple[str, float]]) -> list[tuple[str, float]]:
        """Those of them that are known."""
        return [one for one in points if one[0] not in _TAGS] if self._is_unknown else points

    def _has_read_data(self) -> bool:
        counts = (self._sums + self._setup).reshape(_SHAPE)[..., _COUNT]
        return bool(counts[:, FileClass.DATA].any())
