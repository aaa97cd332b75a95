"""Lookups of embedding rows. These metrics have a value for each step and table.

They are no columns of the `steps` table, so that a run without embedding tables does not pay for
them: the run log has a table of its own, with a row for each step and table.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainobs.core.metrics import Metric, MetricKind
from trainobs.core.quotients import Quotient

PREFIX = "embedding/"

_ALWAYS = "hooks on the model"
_SAMPLED = "ids of sampled steps"
_SAMPLE = "Null in steps without ids."
_ASKED = (
    "Rows that are read without a call of the table's module (F.embedding). Null where a compiled "
    "region hides lookups, or a forward is not the known one."
)


QUOTIENTS: Mapping[str, Quotient] = {
    "embedding/pooling_ratio": Quotient("lookup_count", "bag_count"),
    "embedding/duplicate_ratio": Quotient("unique_rows", "lookup_count", complement=True),
    "embedding/hottest_1pct_ratio": Quotient("hottest_1pct_count", "lookup_count"),
    "embedding/hottest_10pct_ratio": Quotient("hottest_10pct_count", "lookup_count"),
}
"""How the metrics are formed that are no amounts, from fields of `LOOKUP_FIELDS`."""


def _amount(
    field: str, unit: str, tells: str, blind: str = "", chart: str = "", source: str = _ALWAYS
) -> Metric:
    return Metric(PREFIX + field, unit, MetricKind.SUM, source, tells, blind, chart, label="table")


def _ratio(field: str, unit: str, tells: str, blind: str, source: str) -> Metric:
    return Metric(PREFIX + field, unit, MetricKind.RATIO, source, tells, blind, label="table")


_COUNTS = (
    _amount(
        "lookup_count",
        "lookups",
        "Rows that this rank asked the table for, wherever they are.",
        _ASKED,
    ),
    _amount(
        "bag_count",
        "bags",
        "Bags of the lookups. A bag is the ids of one feature of one input; it may be empty. In a "
        "table that does not pool, the ids along the last dimension are one bag.",
        _ASKED,
    ),
    _ratio(
        "pooling_ratio",
        "lookups per bag",
        "Lookups in a bag: the pooling factor.",
        "",
        _ALWAYS,
    ),
    _amount(
        "outside_count",
        "lookups",
        "Ids outside the table.",
        _SAMPLE,
        source=_SAMPLED,
    ),
)

_BYTES = (
    _amount(
        "bytes",
        "bytes",
        "Bytes of rows that forward passes read: lookups times the bytes of a row.",
        "What a kernel or a cache saves by reading a row once that two lookups ask for.",
        "Embedding rows read",
    ),
    _amount(
        "host_bytes",
        "bytes",
        "The part of embedding/bytes that was read from tables in host memory.",
        "",
    ),
    _amount(
        "hbm_bytes",
        "bytes",
        "The part of embedding/bytes that was read from tables in device memory.",
        "",
    ),
    _amount(
        "uvm_hit_bytes",
        "bytes",
        "The part of embedding/bytes that the device's cache of a table in host memory served.",
        "Null unless the kernel counts its hits and misses.",
    ),
    _amount(
        "uvm_miss_bytes",
        "bytes",
        "The part of embedding/bytes that such a cache had to bring in first.",
        "Null unless the kernel counts its hits and misses.",
    ),
    _amount(
        "remote_bytes",
        "bytes",
        "The part of embedding/bytes that another rank read, by the sharding plan.",
        "",
    ),
)

_ROWS = (
    _amount(
        "unique_rows",
        "rows",
        "Different rows among the lookups.",
        _SAMPLE,
        source=_SAMPLED,
    ),
    _ratio(
        "duplicate_ratio",
        "ratio",
        "Share of lookups whose row the same step had already looked up.",
        _SAMPLE,
        _SAMPLED,
    ),
    *(
        _ratio(
            f"hottest_{percent}pct_ratio",
            "ratio",
            f"Share of lookups that go to the {percent} % of the table's rows that were looked up "
            "most so far in the run.",
            f"{_SAMPLE} Rows that no sample saw yet are not hot. Hot ones are chosen anew when "
            "the counts have doubled, of four tables in a sampled step; null before the first.",
            _SAMPLED,
        )
        for percent in (1, 10)
    ),
)

_GRADIENTS = (
    _amount(
        "gradient_rows",
        "rows",
        "Rows with a gradient in the step: all rows if the gradient is dense, the different rows "
        "among the lookups if it is sparse or fused.",
        "Null in steps whose ids were not taken, unless the gradient is dense.",
        source=_SAMPLED,
    ),
    _amount(
        "gradient_bytes",
        "bytes",
        "Bytes of those rows, which backward and optimizer write.",
        "State of the optimizer. As embedding/gradient_rows.",
        source=_SAMPLED,
    ),
    _amount(
        "dense_allreduce_bytes",
        "bytes",
        "Bytes that each rank sends if the table's whole gradient is all-reduced.",
        "By formula, not by measurement. If the table is sharded: what it would be.",
    ),
    _amount(
        "sparse_allreduce_bytes",
        "bytes",
        "Bytes that each rank sends if only the rows with a gradient are exchanged.",
        f"By formula, not by measurement. If it is not done: what it would be. {_SAMPLE}",
        source=_SAMPLED,
    ),
)

_TIMES = (
    _amount(
        "forward_ns",
        "ns",
        "Time of the forward of the module that holds the table, where the host looks the rows up; "
        "several tables in one module share it by the bytes that each read.",
        f"Backward and optimizer; sharded modules, tables on a device, compiled code. {_SAMPLE}",
        source="clock of sampled steps",
    ),
)

EMBEDDINGS: tuple[Metric, ...] = (*_COUNTS, *_BYTES, *_ROWS, *_GRADIENTS, *_TIMES)
"""Metrics by step and table."""


def field_of(metric: Metric) -> str:
    """Field of `LOOKUP_FIELDS` that an amount by table is."""
    return metric.name.removeprefix(PREFIX)


def labelled(metric: Metric, table: str) -> str:
    """Name of a metric of one table, as the report writes it."""
    return f"{metric.name}{{{metric.label}={table}}}"
