"""A profile in a few lines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from trainobs.core.quotients import Interval
from trainobs.core.text import printable, quantity, size
from trainobs.fae.profile.predictions import Predictions

_COLDEST = 3


class ProfileTotals(NamedTuple):
    """What a profile holds, over all tables.

    Attributes:
        hot_count: hot rows.
        row_count: rows.
        table_count: tables.
        whole_count: tables that are hot as a whole.
        hot_bytes: that hot rows take.
        budget_bytes: that they were allowed.
    """

    hot_count: int
    row_count: int
    table_count: int
    whole_count: int
    hot_bytes: int
    budget_bytes: int


def summary(fingerprint: str, rows: ProfileTotals, expected: Predictions | None) -> str:
    """What a profile holds and is expected to do."""
    lines = {
        "hot rows": f"{quantity(rows.hot_count)} of {quantity(rows.row_count)}",
        "tables": f"{rows.table_count}, {rows.whole_count} of them wholly hot",
        "memory": f"{size(rows.hot_bytes)} of {size(rows.budget_bytes)}",
        **dict(_expected(expected) if expected else ()),
    }
    width = max(len(name) for name in lines)
    told = [f"  {name:<{width}}  {text}" for name, text in lines.items()]
    return "\n".join([f"FAE profile {fingerprint}", *told])


def _expected(expected: Predictions) -> Iterator[tuple[str, str]]:
    yield "inputs all hot", _share(expected.all_hot_ratio)
    yield "lookups hot", _share(expected.hot_lookup_ratio)
    coldest = sorted(
        (table.hot_lookup_ratio.value, name)
        for name, table in expected.tables.items()
        if table.hot_lookup_ratio.value < 1
    )[:_COLDEST]
    if coldest:
        names = (f"{printable(name)} {100 * value:.1f} %" for value, name in coldest)
        yield "least so", ", ".join(names)
    spared = size(expected.hot_bytes_per_input.value)
    yield "off the host link", f"{spared} of {size(expected.bytes_per_input)} per input and way"
    if math.isnan(expected.threshold.value):
        yield "threshold", "none: every row that was looked up is hot"
    else:
        value, low, high = (f"{each:.3g}" for each in expected.threshold)
        sizes = " to ".join(size(each) for each in sorted(expected.threshold_bytes[1:]))
        text = f"{value} lookups in a million inputs ({low} to {high}, with which {sizes})"
        yield "threshold", text
    yield "judged by", f"{quantity(expected.input_count)} inputs that were not counted"
    yield "intervals", f"{100 * expected.confidence:g} %"


def _share(share: Interval) -> str:
    value, low, high = (f"{100 * each:.1f}" for each in share)
    return f"{value} % ({low} to {high})"
