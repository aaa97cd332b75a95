"""How unevenly the rows of embedding tables are looked up, from the counts beside a run log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

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
) -> dict[str, Any]:
    """Skew of each table, and of all together.

    Args:
        counts: of the run.
        tables: of the model.
        hot_bytes: what the model's hot rows take; None if it has none.

    Returns:
        `tables`: name -> `lookup_count` (that the counts are of), `outside_count`, `error_count`
        (by which a count may be too low), `served`: share of rows -> share of the lookups counted
        of the hottest (`low`, `high`), `working_set`: share of these -> fewest `rows` that serve
        it, and `zipf` (`exponent`, `low`, `high` at 95 %, `row_count`, `count_min`, and `why` it is
        not known, where the counted steps do not stand for the others).
        `budgets`: for each, `budget_bytes`, whether a row of every table fits (`holds_rows`), its
        `table_ratio` of all bytes, and what the hottest
        rows over all tables serve within it: `lookup_ratio`, with its bounds in `lookups`, and
        `all_hot` of the sampled inputs (`value`, `low`, `high` at 95 %, `inputs`), and `why` one of
        them is not known, as `trainobs.access.hot.ServedShares` has it.
        `of_some_steps`: whether others, that looked rows up too, were not counted: then all rows of
        the working set are at least so many, and what `served` has is at most so much.
        `hot_bytes`: for a budget of so many bytes (`budget_bytes`), of which rows take their
        weights alone, the `at_most_ratio` of the lookups counted that any rows serve; None without
        hot rows.
        `drift`: for each pair of epochs `from`, `to`, `value`, `low`, `high`: see
        `trainobs.access.hot.drift`.
        What is unknown is None.
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


def _of_table(counts: AccessCounts, name: str) -> dict[str, Any]:
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
) -> dict[str, Any]:
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


def _drift(
    counts: AccessCounts, row_bytes: Mapping[str, int], budget_bytes: int
) -> list[dict[str, Any]]:
    if row_bytes.keys() != counts.tables.keys():
        return []
    found = []
    for (one, before), (other, after) in pairwise(sorted(counts.inputs().items())):
        by_steps = counts.is_of_some_steps
        loss = drift(before, after, counts.tables, row_bytes, budget_bytes, by_steps=by_steps)
        if not math.isnan(loss.value):
            found.append({"from": one, "to": other, **_interval(loss)})
    return found


def _interval(interval: Interval) -> dict[str, float | None]:
    # To twelve digits: a bound that is 0 comes out of the formula as something like 1e-20.
    bounds = {name: _number(getattr(interval, name)) for name in ("value", "low", "high")}
    return {name: bound if bound is None else round(bound, 12) for name, bound in bounds.items()}


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
