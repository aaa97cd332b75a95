"""Interleaved pairs: the only fair comparison on a machine whose speed changes by the minute."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

Round = Callable[[bool], list[int]]
"""Runs one round, observed or not; returns the duration of each step in ns."""


def compare(round_: Round, pairs: int) -> dict[str, Any]:
    """Run pairs of rounds and compare their median and mean steps.

    Returns:
        Ratios observed / unobserved (median over the pairs, and quartiles), and step times in us.
    """
    medians: dict[bool, list[float]] = {False: [], True: []}
    means: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(pairs):
        for observed in (False, True) if pair % 2 == 0 else (True, False):
            steps = round_(observed)
            medians[observed].append(statistics.median(steps) / 1e3)
            means[observed].append(statistics.fmean(steps) / 1e3)
    return {
        "pairs": pairs,
        "steps_per_round": len(steps),
        "step_us_without": round(statistics.median(medians[False]), 1),
        "step_us_with": round(statistics.median(medians[True]), 1),
        "ratio_of_median_steps": _ratio(medians),
        "ratio_of_mean_steps": _ratio(means),
    }


def _ratio(rounds: dict[bool, list[float]]) -> dict[str, float]:
    ratios = [b / a for a, b in zip(rounds[False], rounds[True], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"median": round(middle, 4), "quartile1": round(low, 4), "quartile3": round(high, 4)}
