"""Ids that are no rows of their table, in the data of a calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainobs.core.log import logger
from trainobs.core.text import counted
from trainobs.fae.kjt.inputs import Inputs, check_ids
from trainobs.fae.profile.model_tables import ModelTable

_FEW = 100
"""As many ids outside of their table are no sign of other tables."""


class IdLimit(NamedTuple):
    """What ids of a feature are rows of.

    Attributes:
        table: the smallest that has the feature.
        row_count: rows of it.
    """

    table: str
    row_count: int


def limits_of(tables: Sequence[ModelTable], features: Sequence[str]) -> list[IdLimit]:
    """The limit of each feature."""
    having = ((table for table in tables if feature in table.features) for feature in features)
    least = (min(own, key=lambda table: table.row_count) for own in having)
    return [IdLimit(table.name, table.row_count) for table in least]


class OutsideIds:
    """Leaves lookups of ids outside of their table out, and counts them.

    Training goes on with such ids, too, unless FBGEMM's `bounds_check_mode` is FATAL. But where
    most ids of a feature are outside, the tables are those of another model.

    Args:
        limits: of each feature.
        is_fatal: whether the first such id is an error.
    """

    def __init__(self, limits: Sequence[IdLimit], is_fatal: bool = False) -> None:
        self.limits = limits
        self._is_fatal = is_fatal
        self._counts = np.zeros(len(limits), np.int64)
        self._examples = np.zeros(len(limits), np.int64)

    @property
    def count(self) -> int:
        """Lookups that were left out."""
        return int(self._counts.sum())

    def without(self, inputs: Inputs) -> Inputs:
        """The inputs without these lookups.

        Raises:
            FAEError: there may be none, or most lookups of a feature are.
        """
        ids, lengths = list(inputs.ids), list(inputs.lengths)
        for feature, limit in enumerate(self.limits):
            # As unsigned numbers, negative ones are too large as well.
            is_inside = ids[feature].astype(np.uint64) < limit.row_count
            outside = ids[feature][~is_inside]
            if not len(outside):
                continue
            if self._is_fatal or len(outside) > max(_FEW, len(is_inside) / 2):
                check_ids(ids[feature], *limit)
            lengths[feature] = inputs.per_input(feature, is_inside).astype(np.int64)
            ids[feature] = ids[feature][is_inside]
            self._counts[feature] += len(outside)
            self._examples[feature] = outside[0]
        return Inputs(inputs.size, tuple(ids), tuple(lengths))

    def merge(self, other: OutsideIds) -> None:
        """Take over what another process found."""
        self._examples = np.where(other._counts > 0, other._examples, self._examples)
        self._counts = self._counts + other._counts

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that `restore` needs."""
        return {"outside-counts": self._counts, "outside-examples": self._examples}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Hold what `arrays` told."""
        self._counts = arrays["outside-counts"].copy()
        self._examples = arrays["outside-examples"].copy()

    def tell(self) -> None:
        """Warn of what was left out, if anything was."""
        for limit, count, example in zip(self.limits, self._counts, self._examples, strict=True):
            if count:
                logger.warning(
                    "%s of table %r left out\n  found: ids outside of its %d "
                    "rows, such as %d\n  do:    repair the data; training replaces such ids, or "
                    "ends under bounds_check_mode FATAL",
                    counted(int(count), "lookup"),
                    limit.table,
                    limit.row_count,
                    example,
                )
