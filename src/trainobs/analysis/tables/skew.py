"""How unevenly the rows of embedding tables are looked up, from the counts beside a run log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypedDict

import numpy as np

from trainobs.access import AccessCounts
from trainobs.access.hot import drift, most_served, served_by_hot_rows
from trainobs.access.skew import TOGETHER_MAX, served_share, working_set_rows, zipf
from trainobs.access.together import lookups_together
from trainobs.core.embedding_table import EmbeddingTable
from trainobs.core.quotients import Interval
from trainobs.runlog.schema import COUNTS_DIR

HOTTEST = (0.001, 0.01, 0.1)
"""Shares of a table's rows of which it is told what they serve."""

SERVED = (0.5, 0.9, 0.99)
"""Shares of lookups of which it is told how many rows serve them: the working set."""

BUDGETS = (0.001, 0.01, 0.1, 0.5)
"""Shares of the bytes of all tables that are taken as budgets for hot rows."""

DRIFT_BUDGET = 0.1


class Bounds(TypedDict):
    """A number between bounds at 95 %; None where unknown."""

    value: float | None
    low: float | None
    high: float | None


class InputShare(Bounds):
    """The same of inputs, and how many were sampled."""

    inputs: int


class LookupShare(TypedDict):
    """A share of lookups, between bounds; None where unknown."""

    low: float | None
    high: float | None


class Law(TypedDict):
    """Zipf's law of a table.

    Attributes:
        exponent, low, high: with bounds at 95 %; None where unknown.
        row_count: rows that it is of.
        count_min: lookups that each of these has, at least.
        why: it is not known, where the counted steps do not stand for the others.
    """

    exponent: float | None
    low: float | None
    high: float | None
    row_count: int
    count_min: int
    why: str | None


class TableSkew(TypedDict):
    """How unevenly the rows of one table are looked up.

    Attributes:
        lookup_count: that the counts are of.
        outside_count: of no row of the table.
        error_count: by which a count may be too low.
        served: share of rows -> share of the lookups counted of the hottest.
        working_set: share of these -> fewest rows that serve it; None where unknown.
        zipf: see there.
    """

    lookup_count: int
    outside_count: int
    error_count: int
    served: dict[str, LookupShare]
    working_set: dict[str, float | None]
    zipf: Law


class Budget(TypedDict):
    """What the hottest rows over all tables serve within some bytes.

    Attributes:
        budget_bytes: so many.
        holds_rows: whether a row of every table fits.
        table_ratio: of the bytes of all tables.
        lookup_ratio, lookups: of the lookups, and its bounds.
        all_hot: of the sampled inputs, those all of whose lookups they serve; None without any.
        why: one of them is not known, as `trainobs.access.hot.ServedShares` has it.
    """

    budget_bytes: int
    holds_rows: bool
    table_ratio: float
    lookup_ratio: float | None
    lookups: Bounds
    all_hot: InputShare | None
    why: str | None


class HotBudget(TypedDict):
    """The share of the lookups counted that any rows serve in so many bytes, weights alone."""

    budget_bytes: int
    at_most_ratio: float | None


Drift = TypedDict("Drift", {"from": int, "to": int, "value": float, "low": float, "high": float})
"""What hot rows of epoch `from` lose in epoch `to`: see `trainobs.access.hot.drift`."""


class Skew(TypedDict):
    """Skew of each table, and of all together.

    Attributes:
        of_some_steps: whether others, that looked rows up too, were not counted: then all rows of
            the working set are at least so many, and what `served` has is at most so much.
        tables: by name.
        budgets: for hot rows.
        hot_bytes: the same for the bytes of the run's own hot rows; None without any.
        drift: for each pair of epochs.
    """

    of_some_steps: bool
    tables: dict[str, TableSkew]
    budgets: list[Budget]
    hot_bytes: HotBudget | None
    drift: list[Drift]


def load_counts(run_dir: Path) -> AccessCounts | None:
    """The access counts of all ranks together; None where there are none.

    Raises:
        AccessCountsError: they are damaged, or of a newer version.
    """
    path = run_dir / COUNTS_DIR
    # A full disk may have left the directory empty.
    return AccessCounts.load(path) if path.exists() and any(path.iterdir()) else None


def skew(
    counts: AccessCounts, tables: Sequence[EmbeddingTable], hot_bytes: int | None = None
) -> Skew:
    """Skew of each table, and of all together.

    Args:
        counts: of the run.
        tables: of the model.
        hot_bytes: what the model's hot rows take; None if it has none.
    """
    known = {table.name: table for table in tables if table.name in counts.tables}
    # What takes no bytes takes no part in a budget.
    row_bytes = {name: table.row_bytes for name, table in known.items() if table.row_bytes}
    total_bytes = sum(table.row_count * table.row_bytes for table in known.values())
    budgets = [(ratio, int(ratio * total_bytes)) for ratio in BUDGETS]
    return {
        "of_some_steps": counts.is_of_some_steps,
        "tables": {name: _of_table(counts, name) for name in known},
        "budgets": [_of_budget(counts, row_bytes, *one) for one in budgets if one[1]],
        "hot_bytes": {
            "budget_bytes": hot_bytes,
            "at_most_ratio": _number(most_served(counts, row_bytes, hot_bytes)),
        }
        if hot_bytes and total_bytes
        else None,
        "drift": _drift(counts, row_bytes, int(DRIFT_BUDGET * total_bytes)),
    }


def _of_table(counts: AccessCounts, name: str) -> TableSkew:
    spectrum = counts.spectrum(name)
    served = served_share(spectrum, np.array(HOTTEST) * spectrum.row_count)
    together = lookups_together(counts, name)
    law = zipf(spectrum, together=together)
    return {
        "lookup_count": counts.total(name),
        "outside_count": counts.outside(name),
        "error_count": counts.error(name),
        "served": {
            str(share): {"low": _number(low), "high": _number(high)}
            for share, low, high in zip(HOTTEST, served.low, served.high, strict=True)
        },
        "working_set": {str(share): _number(working_set_rows(spectrum, share)) for share in SERVED},
        "zipf": {
            "exponent": _number(law.exponent.value),
            "low": _number(law.exponent.low),
            "high": _number(law.exponent.high),
            "row_count": law.row_count,
            "count_min": law.count_min,
            "why": _why_no_law(together),
        },
    }


def _why_no_law(together: float) -> str | None:
    """Why counts of the steps that were counted tell no exponent; None where they do."""
    if math.isnan(together):
        return "too few steps were counted, or no whole inputs are known in them"
    return None if together <= TOGETHER_MAX else "steps look up other rows at other times"


def _of_budget(
    counts: AccessCounts, row_bytes: Mapping[str, int], ratio: float, budget_bytes: int
) -> Budget:
    served = served_by_hot_rows(counts, row_bytes, budget_bytes)
    return {
        "budget_bytes": budget_bytes,
        "holds_rows": budget_bytes >= max(row_bytes.values()),
        "table_ratio": ratio,
        "lookup_ratio": _number(served.lookup_ratio),
        "lookups": _interval(served.lookups),
        "all_hot": {**_interval(served.all_hot), "inputs": served.input_count}
        if served.input_count
        else None,
        "why": served.why,
    }


def _drift(counts: AccessCounts, row_bytes: Mapping[str, int], budget_bytes: int) -> list[Drift]:
    if row_bytes.keys() != counts.tables.keys():
        return []
    found: list[Drift] = []
    for (one, before), (other, after) in pairwise(sorted(counts.inputs().items())):
        by_steps = counts.is_of_some_steps
        loss = drift(before, after, counts.tables, row_bytes, budget_bytes, by_steps=by_steps)
        if not math.isnan(loss.value):
            value, low, high = (round(float(bound), 12) for bound in loss)
            found.append({"from": one, "to": other, "value": value, "low": low, "high": high})
    return found


def _interval(interval: Interval) -> Bounds:
    # To twelve digits: a bound that is 0 comes out of the formula as something like 1e-20.
    return {
        "value": _number(interval.value, 12),
        "low": _number(interval.low, 12),
        "high": _number(interval.high, 12),
    }


def _number(value: float, digits: int | None = None) -> float | None:
    if not math.isfinite(value):
        return None
    return float(value) if digits is None else round(float(value), digits)
