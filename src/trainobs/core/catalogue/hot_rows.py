"""Hot embedding rows on the device (`trainobs.fae`). These metrics have a value for each step.

A run whose model has none of them has no column for any.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainobs.core.metrics import Metric, MetricKind
from trainobs.core.quotients import Quotient

_SOURCE = "sharded modules with hot rows"
_TABLES = "Tables without hot rows."
_UNEXPECTED = (
    'Null where hot rows were given and not calibrated, and in mode "paper", which has the tables '
    "serve hot lookups of mixed batches."
)


SHARES: Mapping[str, Quotient] = {
    "fae/hot_lookup_ratio": Quotient("fae/hot_lookup_count", "fae/lookup_count"),
    "fae/hot_input_ratio": Quotient("fae/pure_input_count", "fae/input_count"),
    "fae/drift_ratio": Quotient("fae/hot_lookup_count", "fae/expected_hot_count", complement=True),
}
"""How the ratios are formed, from the sums of other metrics."""


def _sum(name: str, unit: str, tells: str, blind: str = "") -> Metric:
    return Metric(f"fae/{name}", unit, MetricKind.SUM, _SOURCE, tells, blind)


def _ratio(name: str, tells: str, blind: str, chart: str = "") -> Metric:
    return Metric(f"fae/{name}", "ratio", MetricKind.RATIO, _SOURCE, tells, blind, chart)


HOT_ROWS: tuple[Metric, ...] = (
    _sum(
        "lookup_count",
        "lookups",
        "Lookups of this rank in tables with hot rows; one that several tables serve, as they "
        "share its feature, counts once.",
        _TABLES,
    ),
    _sum("hot_lookup_count", "lookups", "Of these, lookups that hot rows served."),
    _sum(
        "expected_hot_count",
        "lookups",
        "Of these, lookups that hot rows would have served if each table were as hot as the "
        "calibration expected.",
        _UNEXPECTED,
    ),
    _ratio(
        "hot_lookup_ratio",
        "Share of lookups that hot rows served.",
        _TABLES,
        "Lookups that hot rows served",
    ),
    _ratio(
        "drift_ratio",
        "Share of the expected hot lookups that did not come: 0 is as calibrated, more is colder "
        "data. Pure batches are below 0 and mixed ones above, so look at many steps.",
        _UNEXPECTED,
    ),
    _sum("input_count", "inputs", "Inputs of this rank, once for each module with hot rows."),
    _sum("pure_input_count", "inputs", "Of these, inputs of pure batches."),
    _ratio(
        "hot_input_ratio",
        "Share of inputs that trained in pure batches, which leave the tables alone.",
        "Inputs without a cold lookup that `pack` left in mixed batches.",
    ),
    _sum(
        "saved_bytes",
        "bytes",
        "Weights that were read from hot rows and not from the tables: what the forward pass did "
        "not move over a link to host memory.",
        "Repeated lookups: without hot rows, a cache or a kernel may have read the row once. On a "
        "CPU there is no link, and nothing was saved.",
    ),
    _sum(
        "sync_ns",
        "ns",
        "Time of the host to keep hot rows equal on all ranks (in backward, including waiting for "
        "slower ranks), and equal to the tables (at checkpoints).",
        "The part of it that a device does later.",
    ),
    Metric(
        "fae/pure_step",
        "ratio",
        MetricKind.RATIO,
        _SOURCE,
        "1 for a step of a pure batch, 0 for one of a mixed batch; over steps, the share of them.",
    ),
    _sum("pure_step_ns", "ns", "Time of a step of a pure batch."),
    _sum("mixed_step_ns", "ns", "Time of a step of a mixed batch."),
    Metric(
        "fae/hot_bytes",
        "bytes",
        MetricKind.GAUGE,
        _SOURCE,
        "What hot rows take on the device, optimizer state included.",
    ),
    Metric(
        "fae/all_hot_bytes",
        "bytes",
        MetricKind.GAUGE,
        _SOURCE,
        "What they take on all ranks together, each row once.",
    ),
)
"""Metrics by step, of a run whose model has hot rows."""
