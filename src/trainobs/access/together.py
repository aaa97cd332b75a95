"""How many lookups of a row come together, where some steps of a run were counted."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trainobs.access.counts import AccessCounts
from trainobs.access.input_sample import SURE, joined_samples
from trainobs.access.input_steps import STEPS_MIN
from trainobs.access.interval import RUNS
from trainobs.access.sketch import Sketch, counts_of

_LOOKUPS_MIN = 10
"""Rows with fewer tell little of their rate, whatever comes together."""


def lookups_together(counts: AccessCounts, table: str) -> float:
    """By how much counts of rows vary more than those of independent lookups: 1 if not at all.

    It is the design effect of counting whole steps (L. Kish, Survey Sampling, 1965, sec. 8.2): a
    count varies as if this many lookups came at a time. The variance is that of neighbouring
    counted steps, half of the square of the difference (successive differences: K. M. Wolter,
    Introduction to Variance Estimation, 2nd ed., sec. 8.2), or that of `RUNS` runs of them, where
    it surely is larger; over the mean, as a mean over rows.

    Returns:
        NaN where too few steps are known.
    """
    if not counts.is_of_some_steps:
        return 1.0
    sample = joined_samples(list(counts.inputs().values()))
    if sample.of_steps is None or sample.step_count < STEPS_MIN:
        return math.nan
    at = sample.tables == list(counts.tables).index(table)
    at &= (sample.ids >= 0) & (sample.ids < counts.tables[table])
    ids, totals = sample.ids[at], _totals(counts, table, sample.ids[at])
    # A lookup in the sample stands for its row as one of so many that the row has.
    weights = np.where(totals >= _LOOKUPS_MIN, 1 / np.maximum(totals, 1.0), 0.0)
    near = sample.of_steps.near[at]
    weights[np.isnan(near)] = 0
    more = sample.of_steps.own[at].astype(np.float64) - np.nan_to_num(near)
    between = float((weights * more).sum() / weights.sum()) if weights.any() else 1.0
    steps = np.repeat(sample.of_steps.steps, sample.sizes)[at]
    return max(1.0, between, _over_runs(ids, steps, totals))


def _over_runs(
    ids: NDArray[np.int64], steps: NDArray[np.int64], totals: NDArray[np.float64]
) -> float:
    """What surely comes together in runs of steps, from the lookups in the sample.

    By the index of dispersion of each row, which is chi-square over its degrees of freedom where
    lookups are independent (R. A. Fisher, Statistical Methods for Research Workers, sec. 19).
    """
    _, row, found = np.unique(ids, return_inverse=True, return_counts=True)
    often = found >= _LOOKUPS_MIN
    if not often.any():
        return 1.0
    places = np.unique(steps, return_inverse=True)[1]
    runs = places * RUNS // (int(places.max()) + 1)
    table = np.bincount(row * RUNS + runs, minlength=len(found) * RUNS).reshape(-1, RUNS)[often]
    expected = found[often, None] * (np.bincount(runs, minlength=RUNS) / len(ids))
    index = (np.square(table - expected) / expected).sum(axis=1) / (RUNS - 1)
    error = math.sqrt(2 / (RUNS - 1) / len(index))
    counted = np.zeros(len(found))
    counted[row] = totals
    kept_ratio = float(found[often].sum() / max(counted[often].sum(), 1.0))
    return 1 + max(0.0, float(index.mean()) - 1 - SURE * error) / min(1.0, kept_ratio)


def _totals(counts: AccessCounts, table: str, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    found = counts.counters(table)
    if isinstance(found, Sketch):
        return counts_of(ids, found.ids, found.counts).astype(np.float64)
    return found[ids].astype(np.float64)
