"""Ids that are no rows of their table, in the data of a calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainobs.core.errors import FAEError
from trainobs.core.log import logger
from trainobs.core.text import counted
from trainobs.fae.kjt.inputs import Inputs, id_text, joined
from trainobs.fae.profile.model_tables import OfFeatures

_SURE = 10_000
"""More bad ids than this, and most of those read, and reading ends before the data does."""


class IdLimit(NamedTuple):
    """What ids of a feature are rows of.

    Attributes:
        table: the smallest that has the feature.
        row_count: rows of it.
        feature: that looks them up.
    """

    table: str
    row_count: int
    feature: str


def limits_of(tables: Sequence[OfFeatures], features: Sequence[str]) -> list[IdLimit]:
    """The limit of each feature."""
    having = ((table for table in tables if feature in table.features) for feature in features)
    least = (min(own, key=lambda table: table.row_count) for own in having)
    pairs = zip(least, features, strict=True)
    return [IdLimit(table.name, table.row_count, feature) for table, feature in pairs]


class OutsideCounts(NamedTuple):
    """What of the lookups of each feature was outside.

    Attributes:
        seen: all lookups.
        outside: those that were left out.
        examples: an id of these.
    """

    seen: NDArray[np.int64]
    outside: NDArray[np.int64]
    examples: NDArray[np.int64]

    def plus(self, other: OutsideCounts) -> OutsideCounts:
        """Those of both."""
        examples = np.where(other.outside > 0, other.examples, self.examples)
        return OutsideCounts(self.seen + other.seen, self.outside + other.outside, examples)

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """All that `OutsideIds.restore` needs."""
        return {f"outside-{name}": array for name, array in self._asdict().items()}


class OutsideIds:
    """Leaves lookups of ids outside of their table out, and counts them.

    Training goes on with such ids, too, unless FBGEMM's `bounds_check_mode` is FATAL. But where
    most ids of a feature are outside, the tables are those of another model. That is judged batch
    by batch and at the end, never by lots, whose size depends on how fast a loader is.

    Args:
        limits: of each feature.
        is_fatal: whether the first such id is an error.

    Attributes:
        counts: of all inputs that came through here.
    """

    def __init__(self, limits: Sequence[IdLimit], is_fatal: bool = False) -> None:
        self.limits = limits
        self._is_fatal = is_fatal
        self.counts = OutsideCounts(*np.zeros((3, len(limits)), np.int64))

    @property
    def count(self) -> int:
        """Lookups that were left out."""
        return int(self.counts.outside.sum())

    def saw(self, lookups: NDArray[np.int64]) -> None:
        """Count lookups of each feature, none of which is outside."""
        self.counts = self.counts._replace(seen=self.counts.seen + lookups)

    def without(self, batches: Sequence[Inputs]) -> Inputs:
        """The inputs of several batches without these lookups.

        Raises:
            FAEError: there may be none, or most lookups of a feature are.
        """
        return joined([self._inside(batch) for batch in batches])

    def _inside(self, inputs: Inputs) -> Inputs:
        ids, lengths = list(inputs.ids), list(inputs.lengths)
        found = np.zeros((3, len(ids)), np.int64)
        for feature, limit in enumerate(self.limits):
            # As unsigned numbers, negative ones are too large as well.
            is_inside = ids[feature].astype(np.uint64) < limit.row_count
            outside = ids[feature][~is_inside]
            found[:2, feature] = len(is_inside), len(outside)
            if len(outside):
                if self._is_fatal:
                    raise _outside(limit, int(outside[0]), len(outside), len(is_inside))
                found[2, feature] = outside[0]
                lengths[feature] = inputs.per_input(feature, is_inside).astype(np.int64)
                ids[feature] = ids[feature][is_inside]
        self.counts = self.counts.plus(OutsideCounts(*found))
        self._judge(_SURE)
        return Inputs(inputs.size, tuple(ids), tuple(lengths))

    def _judge(self, least: int) -> None:
        """Raise an FAEError if most ids of a feature are outside, and more than so many."""
        for limit, seen, count, example in zip(self.limits, *self.counts, strict=True):
            if count > max(least, seen / 2):
                raise _outside(limit, int(example), int(count), int(seen))

    def merge(self, other: OutsideIds) -> None:
        """Take over what another process found."""
        self.counts = self.counts.plus(other.counts)

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Hold what `OutsideCounts.arrays` told."""
        names = OutsideCounts._fields
        self.counts = OutsideCounts(*(arrays[f"outside-{name}"].copy() for name in names))

    def tell(self) -> None:
        """Warn of what was left out of all data, if anything was.

        Raises:
            FAEError: most lookups of a feature were.
        """
        self._judge(0)
        for limit, seen, count, example in zip(self.limits, *self.counts, strict=True):
            if count:
                logger.warning(
                    "%s of %s of feature %r left out\n  found: ids outside of the %d rows of table "
                    "%r, such as %s\n  do:    repair the data; training takes other rows for such "
                    "ids under bounds_check_mode WARNING and IGNORE (on hosts it may end at -1), "
                    "and ends under FATAL",
                    f"{count:,}",
                    counted(int(seen), "lookup"),
                    limit.feature,
                    limit.row_count,
                    limit.table,
                    id_text(int(example)),
                )


def _outside(limit: IdLimit, example: int, count: int, seen: int) -> FAEError:
    """An error that says how many of the ids seen are no rows of a table."""
    return FAEError(
        f"an id of feature {limit.feature!r} is outside of table {limit.table!r}",
        f"id {id_text(example)} ({count} of {seen} are outside); "
        f"the table has {limit.row_count} rows",
        "repair the data, or give the tables of the model that trains on them",
    )
