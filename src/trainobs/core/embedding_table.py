"""The record of embedding lookups: one row a step and table, from torch to the sinks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainobs.core.text import encodable


@dataclass(frozen=True)
class EmbeddingTable:
    """What is true of an embedding table for the whole run.

    Texts are what UTF-8 can say: lone surrogates are escapes.

    Attributes:
        name: unique in the run; the qualified name of the module where tables have no name.
        row_count: rows of the whole table, over all ranks.
        dim: values in a row.
        row_bytes: bytes of a row's weights.
        module: qualified name of the module that holds it.
        features: features that look it up; empty where there are none.
        placement: where its rows are ("host", "hbm", "uvm", "uvm_caching"), and how it is sharded.
    """

    name: str
    row_count: int
    dim: int
    row_bytes: int
    module: str
    features: tuple[str, ...] = ()
    placement: str = "host"

    def __post_init__(self) -> None:
        for name in ("row_count", "dim", "row_bytes"):  # modules keep what they were given: NumPy's
            object.__setattr__(self, name, int(getattr(self, name)))
        for name in ("name", "module", "placement"):
            object.__setattr__(self, name, encodable(getattr(self, name)))
        object.__setattr__(self, "features", tuple(map(encodable, self.features)))


LOOKUP_FIELDS = (
    "lookup_count",
    "bag_count",
    "bytes",
    "hbm_bytes",
    "uvm_hit_bytes",
    "uvm_miss_bytes",
    "host_bytes",
    "remote_bytes",
    "unique_rows",
    "hottest_1pct_count",
    "hottest_10pct_count",
    "outside_count",
    "gradient_rows",
    "gradient_bytes",
    "dense_allreduce_bytes",
    "sparse_allreduce_bytes",
    "forward_ns",
)
"""Amounts of one step and table; NaN where one is unknown: without a sample, what needs ids."""

LOOKUP_ROW = np.dtype(
    [
        ("step", "<i8"),
        ("epoch", "<i4"),
        ("table", "<i4"),
        ("sampled", "?"),
        *((name, "<f8") for name in LOOKUP_FIELDS),
    ]
)
"""Lookups of one table in one step, as this rank asked for them, wherever the rows are.

`table` is an index into the run's tables. Steps in which a table served nothing have no row.
`hottest_1pct_count` of `lookup_count` went to the 1 % of the table's rows that were hottest so far
in the run.
"""
