"""Phases with a name of the user's: metrics of one run, beside those of the catalogue."""

from __future__ import annotations

import re
from functools import lru_cache

from trainobs.core.abi import Phase
from trainobs.core.catalogue.making import timed
from trainobs.core.metrics import Metric

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_TAKEN = frozenset(phase.name.lower() for phase in Phase)


def may_name_a_phase(name: str) -> bool:
    """Whether a phase can have this name: it becomes a column, and a tag of TensorBoard."""
    return _NAME.fullmatch(name) is not None and name not in _TAKEN


def named_phase_metric(name: str) -> str:
    """Name of the metric that holds the time of such a phase."""
    return f"phase/{name}_ns"


@lru_cache(maxsize=1024)  # asked of each column of each delivery
def named_phase(metric: str) -> str | None:
    """The phase whose time a metric is, if that has a name of the user's."""
    name = metric.removeprefix("phase/").removesuffix("_ns")
    return name if metric == named_phase_metric(name) and may_name_a_phase(name) else None


def metric_of_phase(name: str) -> Metric:
    """The metric of such a phase."""
    return timed(named_phase_metric(name), "Time in a phase that the loop has named itself.")
