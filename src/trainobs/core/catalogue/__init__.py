"""The catalogue: every number that trainobs logs, what it means and how it is made.

TensorBoard tags, Parquet columns, the report and `docs/metrics.md` all come from `CATALOGUE`, and
from `EMBEDDINGS` what has a value for each step and embedding table, from `HOT_ROWS` what a run has
whose model keeps hot rows on the device. Each file of this package
holds the metrics of one subject.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainobs.core.catalogue.devices import DEVICES
from trainobs.core.catalogue.embeddings import EMBEDDINGS
from trainobs.core.catalogue.files import FILES
from trainobs.core.catalogue.gpu import GPU
from trainobs.core.catalogue.hot_rows import HOT_ROWS
from trainobs.core.catalogue.machine import MACHINE
from trainobs.core.catalogue.making import phase_metric
from trainobs.core.catalogue.named import named_phase_metric
from trainobs.core.catalogue.network import NETWORK
from trainobs.core.catalogue.own import OWN
from trainobs.core.catalogue.python import PYTHON
from trainobs.core.catalogue.ranks import RANKS
from trainobs.core.catalogue.steps import STEPS
from trainobs.core.catalogue.tasks import TASKS
from trainobs.core.metrics import Metric

__all__ = [
    "CATALOGUE",
    "EMBEDDINGS",
    "HOT_ROWS",
    "METRICS",
    "STEP_METRICS",
    "kernel_metrics",
    "lost_without",
    "named_phase_metric",
    "phase_metric",
]

CATALOGUE: tuple[Metric, ...] = (
    *STEPS,
    *FILES,
    *DEVICES,
    *TASKS,
    *NETWORK,
    *GPU,
    *MACHINE,
    *PYTHON,
    *RANKS,
    *OWN,
)

STEP_METRICS = (*CATALOGUE, *HOT_ROWS)
"""All that has a value for each step: what every run has, and what some models bring along."""

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in STEP_METRICS}


def kernel_metrics() -> Iterable[Metric]:
    """Metrics whose value follows from kernel cells."""
    return (metric for metric in CATALOGUE if metric.formula is not None)


def lost_without(program: str) -> list[str]:
    """Names of the metrics that are unknown where a program of the kernel side does not run."""
    return [metric.name for metric in CATALOGUE if program in metric.programs]
