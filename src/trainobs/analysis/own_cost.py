"""What observing took, and the time of all steps that it is held against."""

from __future__ import annotations

from collections.abc import Mapping

from trainobs.analysis.metric_statistics import Statistics
from trainobs.verdict.metric_names import STEP

SHORT_NS = 1e9
"""Time of all steps, ns, below which nothing is told: the observer works in such intervals."""

_COSTS = ("obs/cpu_ns", "obs/probe_ns")


def training_ns(metrics: Mapping[str, Statistics], setup: Mapping[str, int]) -> float:
    """Time that all steps took together, ns.

    Args:
        metrics: statistics by name.
        setup: what their sums contain from before the first step.
    """
    return float(metrics[STEP]["sum"] or 0) - setup.get(STEP, 0)


def own_cpu_ratio(metrics: Mapping[str, Statistics], training_ns: float) -> float | None:
    """CPU time of observing as a share of all time; None where unknown, or of a run that is short.

    Args:
        metrics: statistics by name.
        training_ns: time of all steps.
    """
    means = [metrics[name]["mean"] for name in _COSTS]
    known = [mean for mean in means if mean is not None]
    step_ns = metrics[STEP]["mean"]
    if not known or not step_ns or training_ns < SHORT_NS:
        return None
    return sum(known) / step_ns
