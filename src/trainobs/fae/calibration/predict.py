"""What hot rows are to be expected to serve, from inputs that had no part in choosing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainobs.access.members import are_among
from trainobs.access.spectrum import histogram
from trainobs.core.quotients import UNKNOWN, Interval
from trainobs.fae.calibration.choice import Choice, RowCounts
from trainobs.fae.calibration.intervals import constant, count_interval, ratio
from trainobs.fae.calibration.threads import each
from trainobs.fae.kjt.inputs import Inputs
from trainobs.fae.profile.model_tables import ModelTable, OfFeatures, features_of
from trainobs.fae.profile.predictions import Predictions, TablePrediction

GROUPS_PER_DOUBLING = 4
"""Groups of rows whose counts are within a factor of two."""


class HotLookupCounts(NamedTuple):
    """Lookups of each held-out input in one table, or in several.

    Attributes:
        hot: lookups of hot rows.
        all: lookups.
    """

    hot: NDArray[Any]
    all: NDArray[Any]

    @property
    def is_all_hot(self) -> NDArray[np.float64]:
        """1 for each input of which no lookup is cold, else 0."""
        return np.asarray(self.hot == self.all, dtype=np.float64)

    def add(self, other: HotLookupCounts) -> None:
        """Take in lookups of other tables."""
        for own, more in zip(self, other, strict=True):
            own += more if constant(more) is None else more[0].item()


def served(
    tables: Sequence[OfFeatures], hot_ids: Mapping[str, NDArray[np.int64]], inputs: Inputs
) -> HotLookupCounts:
    """Which lookups of some inputs hot rows serve, in all tables together.

    Args:
        tables: of the model.
        hot_ids: of each table.
        inputs: with the features of `features_of(tables)`, in that order.
    """
    features = features_of(tables)
    total = nothing(inputs)
    for found in each(lambda t: _served_of(t, features, hot_ids[t.name], inputs), tables):
        total.add(found)
    return total


def _served_of(
    table: OfFeatures, features: Sequence[str], hot_ids: NDArray[np.int64], inputs: Inputs
) -> HotLookupCounts:
    """The same of one table."""
    at = [features.index(feature) for feature in table.features]
    flags = are_among(hot_ids, table.row_count, [inputs.ids[own] for own in at])
    counts = [
        HotLookupCounts(inputs.per_input(own, is_hot), inputs.lookups_of(own))
        for own, is_hot in zip(at, flags, strict=True)
    ]
    if len(counts) == 1:
        return counts[0]
    total = nothing(inputs)
    for count in counts:
        total.add(count)
    return total


def nothing(inputs: Inputs) -> HotLookupCounts:
    """No lookups of so many inputs."""
    return HotLookupCounts(np.zeros(inputs.size, np.int32), np.zeros(inputs.size, np.int32))


def predict(
    tables: Sequence[ModelTable],
    choice: Choice,
    counts: Mapping[str, RowCounts],
    counted_inputs: float,
    inputs: Inputs,
    confidence: float,
) -> Predictions:
    """What is to be expected of a choice.

    Args:
        tables: of the model.
        choice: of hot rows.
        counts: that it was made from.
        counted_inputs: inputs that the counts are of.
        inputs: others, held out.
        confidence: of each interval by itself.
    """
    features = features_of(tables)

    def of(table: ModelTable) -> tuple[HotLookupCounts, TablePrediction]:
        found = _served_of(table, features, choice.hot_ids[table.name], inputs)
        ids = [inputs.ids[features.index(feature)] for feature in table.features]
        groups = _groups(
            table, counts[table.name], ids[0] if len(ids) == 1 else np.concatenate(ids)
        )
        return found, TablePrediction(
            _mean(found.all), ratio(*found, confidence, inputs.begins), *groups
        )

    by_table, by_width = {}, {table.weight_bytes: nothing(inputs) for table in tables}
    for table, (found, prediction) in zip(tables, each(of, tables), strict=True):
        by_width[table.weight_bytes].add(found)
        by_table[table.name] = prediction
    total = nothing(inputs)
    moved = HotLookupCounts(np.zeros(inputs.size), np.zeros(inputs.size))
    for width, found in by_width.items():
        total.add(found)
        moved.add(HotLookupCounts(found.hot * float(width), found.all * float(width)))
    threshold, threshold_bytes = _threshold(choice, counted_inputs, confidence)
    return Predictions(
        confidence=confidence,
        input_count=inputs.size,
        all_hot_ratio=ratio(total.is_all_hot, np.ones(inputs.size), confidence, inputs.begins),
        hot_lookup_ratio=ratio(*total, confidence, inputs.begins),
        bytes_per_input=_mean(moved.all),
        hot_bytes_per_input=_mean_hot(moved, confidence, inputs.begins),
        threshold=threshold,
        threshold_bytes=threshold_bytes,
        tables=by_table,
    )


def _mean_hot(
    moved: HotLookupCounts, confidence: float, begins: NDArray[np.intp] | None
) -> Interval:
    """Mean of what is hot, as a share of the most that an input has: not only shares vary."""
    most = float(moved.all.max(initial=0.0))
    share = ratio(moved.hot, np.broadcast_to(most, len(moved.hot)), confidence, begins)
    return Interval(*(most * each for each in share))


def _mean(values: NDArray[np.number[Any]]) -> float:
    if (same := constant(values)) is not None:
        return same
    return float(values.mean()) if len(values) else float("nan")


def _threshold(
    choice: Choice, counted_inputs: float, confidence: float
) -> tuple[Interval, Interval]:
    count, score = choice.threshold
    if count == 0:
        full = choice.bytes_at(0.0)
        return UNKNOWN, Interval(full, full, full)
    low, _ = count_interval(count, confidence)
    # Of rows with just this count, only some may have had room: surely hot is one count more.
    _, high = count_interval(count + 1, confidence)
    scale = 1e6 / counted_inputs
    sizes = (choice.bytes_at(score * factor) for factor in (1.0, high / count, low / count))
    return Interval(count * scale, low * scale, high * scale), Interval(*sizes)


def _groups(
    table: ModelTable, counts: RowCounts, ids: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rows with similar counts, hottest first, and the share of held-out lookups of each group."""
    classes = counts.classes
    group = _group(classes.counts)
    group_rows = np.zeros(int(group.max(initial=0)) + 1)
    np.add.at(group_rows, group, classes.rows)
    group_rows[0] = table.row_count - classes.rows.sum()
    if table.row_count <= len(ids):  # many lookups a row, of counts too high for a histogram
        times = np.bincount(ids, minlength=table.row_count)
        found = counts.of(np.arange(table.row_count))
    else:
        found, times = histogram(counts.of(ids))
    looked_up = np.bincount(_group(found), times, minlength=len(group_rows))
    looked_up[0] = len(ids) - looked_up[1:].sum()
    ratios = looked_up / len(ids) if len(ids) else np.full(len(group_rows), np.nan)
    used = group_rows > 0
    return group_rows[used][::-1].astype(np.int64), ratios[used][::-1]


def _group(counts: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Number of the group of each count; 0 for rows that were not looked up."""
    logarithms = np.log2(np.maximum(counts, 0.5).astype(np.float32))
    return np.asarray(GROUPS_PER_DOUBLING * logarithms + GROUPS_PER_DOUBLING, dtype=np.int64)
