"""FBGEMM's caches of rows in unified memory: how many lookups miss them, table by table.

A kernel counts misses of each table if it was made with `record_cache_metrics` whose
`record_tablewise_cache_miss` is true. The counters lie on the device. They are copied in sampled
steps, before the step's own lookups; so what is known is how many of the lookups since the sample
before have missed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainobs.embeddings.buffer import LookupCapture, host
from trainobs.embeddings.sites import Site


class Cache(NamedTuple):
    """A kernel that counts misses, and the table of each of its counters."""

    kernel: Any
    tables: tuple[int, ...]


def caches(site: Site) -> list[Cache]:
    """The kernels of a site that count misses."""
    found = []
    for kernel, tables in _kernels(site):
        counts = getattr(kernel, "record_cache_metrics", None)
        if getattr(counts, "record_tablewise_cache_miss", False):
            mapping = [site.tables[tables[table]] for table in kernel.feature_table_map]
            found.append(Cache(kernel, tuple(mapping)))
    return found


def _kernels(site: Site) -> list[tuple[Any, list[int]]]:
    """Kernels, and for each of their tables its place among those of the site."""
    module: Any = site.module
    if hasattr(module, "feature_table_map"):
        return [(module, list(range(len(site.tables))))]
    kernels = []
    for lookup in getattr(module, "_lookups", ()):
        for group in getattr(getattr(lookup, "module", lookup), "_emb_modules", ()):
            held = [table.name for table in group.config.embedding_tables]
            if len(set(held)) == len(held):  # not several parts of the columns of one table
                kernels.append((group.emb_module, [site.names.index(name) for name in held]))
    return kernels


class MissRates:
    """Misses of each lookup, from counters that only grow.

    Args:
        table_count: tables of the run.
    """

    def __init__(self, table_count: int) -> None:
        self._rates = np.full(table_count, np.nan)
        self._lookups = np.zeros(table_count)
        self._misses: dict[int, int] = {}

    def step(
        self, capture: LookupCapture | None, lookups: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Rows missed for each lookup since the sample before this step; NaN where unknown.

        Args:
            capture: what was noted in the step; all steps in turn.
            lookups: its lookups by table.
        """
        if capture is not None and capture.misses:
            self._read(capture)
        self._lookups += lookups
        rates: NDArray[np.float64] = self._rates.copy()
        return rates

    def _read(self, capture: LookupCapture) -> None:
        totals: dict[int, int] = {}
        for tables, copied in capture.misses:
            for table, count in zip(tables, host(copied).tolist(), strict=True):
                totals[table] = totals.get(table, 0) + count
        for table, total in totals.items():
            if table in self._misses and self._lookups[table] > 0:
                missed = total - self._misses[table]
                self._rates[table] = min(1.0, missed / self._lookups[table])
            self._misses[table] = total
            self._lookups[table] = 0
