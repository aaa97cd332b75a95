"""What a calibration expects of a hot set, each figure with the interval that covers it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainobs.core.errors import FAEError, a_type
from trainobs.core.quotients import UNKNOWN, Interval
from trainobs.core.text import printable, quantity, size

_COLDEST = 3
"""Tables that a summary names."""


@dataclass(frozen=True, eq=False)
class TablePrediction:
    """What is expected of one table, from inputs that had no part in choosing the hot rows.

    Attributes:
        lookups_per_input: lookups in an input, on average.
        hot_lookup_ratio: share of its lookups that hot rows serve.
        group_rows: rows in each group of rows with similar counts, hottest group first; they add
            up to the rows of the table.
        group_ratios: share of the held-out lookups that went to each group; NaN where none were
            held out.
    """

    lookups_per_input: float
    hot_lookup_ratio: Interval
    group_rows: NDArray[np.int64]
    group_ratios: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Predictions:
    """What is expected of a hot set before training.

    Attributes:
        confidence: of every interval here, each by itself.
        input_count: held-out inputs that the figures were taken from.
        all_hot_ratio: share of inputs of which every lookup is hot.
        hot_lookup_ratio: share of all lookups that hot rows serve.
        bytes_per_input: weights that the lookups of an input read, over all tables.
        hot_bytes_per_input: of these, weights of hot rows: what a host link is spared in the
            forward pass, where it would otherwise carry every row. Backward spares as much again.
        threshold: lookups per million inputs of the coldest row chosen by its count. A row whose
            true rate is above the interval is chosen with at least `confidence`, one below it
            left out. NaN where the budget held every row that was seen.
        threshold_bytes: bytes of hot rows at the threshold, and at both ends of its interval.
        tables: by name.
        unread_ratio: share of the data that what was read cannot stand for, as it lies behind
            beginnings; 1 where its length is not known. Intervals of shares cover whatever it may
            hold, if its inputs make as many lookups.
    """

    confidence: float
    input_count: int
    all_hot_ratio: Interval
    hot_lookup_ratio: Interval
    bytes_per_input: float
    hot_bytes_per_input: Interval
    threshold: Interval
    threshold_bytes: Interval
    tables: Mapping[str, TablePrediction]
    unread_ratio: float = 0.0

    def with_unread(self, ratio: float, wholly_hot: Collection[str] = ()) -> Predictions:
        """The same figures where a share of the data lies behind the beginnings that were read.

        Args:
            ratio: that share.
            wholly_hot: tables of which no data can look up a row that is not hot.
        """
        tables = {
            name: table
            if name in wholly_hot
            else replace(table, hot_lookup_ratio=with_unread(table.hot_lookup_ratio, ratio))
            for name, table in self.tables.items()
        }
        every = self.bytes_per_input
        return replace(
            self,
            all_hot_ratio=with_unread(self.all_hot_ratio, ratio),
            hot_lookup_ratio=with_unread(self.hot_lookup_ratio, ratio),
            hot_bytes_per_input=with_unread(self.hot_bytes_per_input, ratio, every),
            tables=tables,
            unread_ratio=ratio,
        )

    def up_to(self, most: Predictions, chosen_by: float) -> Predictions:
        """The same figures, with intervals that reach as high as those of `most`, or higher.

        Args:
            most: other figures of the same inputs.
            chosen_by: share of the data that chose the hot rows: of it they may serve all.
        """
        tables = {}
        for name, table in self.tables.items():
            share = _up_to(
                table.hot_lookup_ratio, most.tables[name].hot_lookup_ratio, chosen_by, 1.0
            )
            tables[name] = replace(table, hot_lookup_ratio=share)
        moved, every = self.hot_bytes_per_input, self.bytes_per_input
        return replace(
            self,
            all_hot_ratio=_up_to(self.all_hot_ratio, most.all_hot_ratio, chosen_by, 1.0),
            hot_lookup_ratio=_up_to(self.hot_lookup_ratio, most.hot_lookup_ratio, chosen_by, 1.0),
            hot_bytes_per_input=_up_to(moved, most.hot_bytes_per_input, chosen_by, every),
            tables=tables,
        )

    def without(self, given_up: Collection[str]) -> Predictions:
        """What is expected where some tables have no hot rows any more, as far as that follows.

        Inputs that look none of these tables up are taken to be no more often all hot than others.
        """
        none = Interval(0.0, 0.0, 0.0)
        gone = [n for n in given_up if self.tables[n].hot_lookup_ratio.high > 0]
        tables = {
            name: replace(table, hot_lookup_ratio=none) if name in gone else table
            for name, table in self.tables.items()
        }
        if not gone:
            return self
        parts = [
            [table.lookups_per_input * end for end in table.hot_lookup_ratio]
            for table in tables.values()
            if table.lookups_per_input > 0
        ]
        lookups = sum(t.lookups_per_input for t in tables.values() if t.lookups_per_input > 0)
        share = [sum(ends) / lookups for ends in zip(*parts, strict=True)] if parts else UNKNOWN
        left = max(0.0, 1 - max(self.tables[name].lookups_per_input for name in gone))
        return replace(
            self,
            all_hot_ratio=Interval(self.all_hot_ratio.value * left, 0.0, self.all_hot_ratio.high),
            hot_lookup_ratio=Interval(*share),
            hot_bytes_per_input=UNKNOWN,  # the widths are not known here
            threshold_bytes=UNKNOWN,
            tables=tables,
        )

    def summary(self) -> dict[str, str]:
        """What is expected, as a few lines by their name."""
        lines = {
            "inputs all hot": _share(self.all_hot_ratio),
            "lookups hot": _share(self.hot_lookup_ratio),
        }
        ratios = {name: table.hot_lookup_ratio.value for name, table in self.tables.items()}
        coldest = sorted((value, name) for name, value in ratios.items() if value < 1)[:_COLDEST]
        if coldest:
            names = (f"{printable(name)} {100 * value:.1f} %" for value, name in coldest)
            lines["least so"] = ", ".join(names)
        spared, every = map(_size, (self.hot_bytes_per_input.value, self.bytes_per_input))
        lines["off the host link"] = f"{spared} of {every} per input and way"
        if math.isnan(self.threshold.value):
            lines["threshold"] = (
                "none: there is room for every row that was looked up and may be hot"
            )
        else:
            value, low, high = (quantity(each) for each in self.threshold)
            sizes = " to ".join(_size(each) for each in sorted(self.threshold_bytes[1:]))
            with_sizes = "" if math.isnan(self.threshold_bytes.value) else f", with which {sizes}"
            text = f"{value} lookups in a million inputs ({low} to {high}{with_sizes})"
            lines["threshold"] = text
        lines["judged by"] = f"{quantity(self.input_count)} inputs that were not counted"
        if self.unread_ratio:
            lines["read"] = f"beginnings alone; {unread_text(self.unread_ratio)}"
        lines["intervals"] = f"{100 * self.confidence:g} %"
        return lines


def required(
    predictions: Predictions | None,
    failed: str,
    do: str = "make the profile by trainobs.fae.calibrate",
) -> Predictions:
    """The predictions of a profile.

    Raises:
        FAEError: it has none, as its hot rows were given and not calibrated; `failed` for that.
    """
    if predictions is None:
        raise FAEError(failed, "a profile without predictions", do)
    return predictions


def with_unread(share: Interval, ratio: float, whole: float = 1.0) -> Interval:
    """What covers a share, of a `whole`, though of some of the data nothing is known."""
    read = 1 - ratio
    return Interval(share.value, read * share.low, read * share.high + ratio * whole)


def _up_to(share: Interval, most: Interval, chosen_by: float, whole: float) -> Interval:
    high = max(share.high, most.high)
    return share._replace(high=high + chosen_by * max(0.0, whole - high))


def unread_text(ratio: float) -> str:
    """How much of the data lies behind the beginnings that were read, in words."""
    much = "nobody knows how much" if ratio == 1 else f"{100 * ratio:.1f} % of the data"
    return f"{much} was not read, and may look up other rows"


def _size(count: float) -> str:
    return "unknown" if math.isnan(count) else size(count)


def _share(share: Interval) -> str:
    if math.isnan(share.value):
        return "unknown: there was nothing to judge by"
    value, low, high = (f"{100 * each:.1f}" for each in share)
    return f"{value} % ({low} to {high})"


_ESTIMATES = (
    "all_hot_ratio",
    "hot_lookup_ratio",
    "hot_bytes_per_input",
    "threshold",
    "threshold_bytes",
)
_NUMBERS = ("confidence", "input_count", "bytes_per_input")


def to_archive(predictions: Predictions) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Facts for JSON, and arrays, of which `from_archive` makes the predictions again."""
    facts: dict[str, Any] = {name: getattr(predictions, name) for name in _ESTIMATES + _NUMBERS}
    facts["unread_ratio"] = predictions.unread_ratio
    facts["tables"] = [
        [name, table.lookups_per_input, table.hot_lookup_ratio]
        for name, table in predictions.tables.items()
    ]
    arrays: dict[str, NDArray[Any]] = {}
    for i, table in enumerate(predictions.tables.values()):
        arrays[f"group-rows-{i}"] = table.group_rows
        arrays[f"group-ratios-{i}"] = table.group_ratios
    return facts, arrays


def from_archive(facts: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Predictions:
    """The opposite of `to_archive`.

    Raises:
        KeyError: a fact or an array is missing.
        TypeError: one is of another type.
    """
    known: dict[str, Any] = {name: _number(facts[name]) for name in _NUMBERS}
    known.update((name, _interval(facts[name])) for name in _ESTIMATES)
    known["unread_ratio"] = _number(facts.get("unread_ratio", 0.0))  # older ones have none
    tables = {
        name: TablePrediction(
            _number(lookups),
            _interval(ratio),
            arrays[f"group-rows-{i}"].astype(np.int64, casting="safe"),
            arrays[f"group-ratios-{i}"].astype(np.float64, casting="safe"),
        )
        for i, (name, lookups, ratio) in enumerate(facts["tables"])
    }
    return Predictions(**known, tables=tables)


def _interval(values: list[Any]) -> Interval:
    return Interval(*map(_number, values))


def _number(value: Any) -> Any:
    if type(value) not in (int, float):
        raise TypeError(f"{a_type(value)} where a number was expected")
    return value
