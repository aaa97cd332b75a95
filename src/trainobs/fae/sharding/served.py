"""Counts what the hot rows of a sharded collection serve, on the host, for an observer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from operator import add
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec.modules.embedding_configs import DATA_TYPE_NUM_BITS, BaseEmbeddingConfig

from trainobs.core.hot_rows import HOT_SUFFIX, HotTotals, ServedBy
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.batch import SplitBatch


class FeatureRows(NamedTuple):
    """A feature, the row of each slot of its table, and who serves them."""

    feature: str
    rows: NDArray[np.int64]
    by: ServedBy


_AHEAD = 64  # batches that a pipeline may have on their way


class Stopwatch:
    """Adds up the time inside its `with` blocks.

    Attributes:
        total_ns: so far.
    """

    def __init__(self) -> None:
        self.total_ns = 0
        self._since_ns = 0

    def __enter__(self) -> None:
        self._since_ns = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self.total_ns += time.perf_counter_ns() - self._since_ns


class ServedCounts:
    """Counts what hot rows serve; see `trainobs.core.hot_rows`.

    A batch is counted when it is looked up, not when it is sent ahead, and only with autograd on,
    since an evaluation is not part of the training.

    Attributes:
        syncing: the time that it takes to keep hot rows and tables equal.
    """

    def __init__(self) -> None:
        self.syncing = Stopwatch()
        self._totals = HotTotals()
        self._coming: dict[int, HotTotals] = {}
        self._features: dict[str, tuple[float, float]] = {}  # row bytes, expected ratio
        self._rows: dict[str, dict[str, NDArray[np.int64]]] = {}  # of this profile, and the last
        self._by, self._by_in_mixed = ServedBy.DEVICE, ServedBy.DEVICE

    def totals(self) -> HotTotals:
        """See `ServesHotRows`."""
        return self._totals._replace(sync_ns=self.syncing.total_ns)

    def slots_of_key(self, key: str) -> FeatureRows | None:
        """See `ShardedFAEModule`."""
        feature, _, mark = key.partition(HOT_SUFFIX)
        kind, _, fingerprint = mark.partition("@")
        rows = self._rows.get(fingerprint, {}).get(feature)
        by = self._by if kind == "pure" else self._by_in_mixed
        return None if rows is None else FeatureRows(feature, rows, by)

    def use(
        self,
        profile: FAEProfile,
        configs: Iterable[BaseEmbeddingConfig],
        trained: Mapping[str, int],
        own_bytes: int | None,
        *,
        serve_all: bool = True,
    ) -> None:
        """Count for these hot rows from now on.

        Args:
            profile: which rows are hot.
            configs: of the collection's tables.
            trained: bytes of a row of each, with its optimizer's state.
            own_bytes: that hot rows take on this rank, where it has a part of them alone.
            serve_all: whether they serve all hot lookups. Where tables serve some, nobody knows how
                many of those that were expected came.
        """
        self._by = ServedBy.DEVICE if own_bytes is None else ServedBy.OWNER
        self._by_in_mixed = self._by if serve_all else ServedBy.TABLE
        self._features = {}
        rows: dict[str, NDArray[np.int64]] = {}
        hot_bytes = 0
        overlaid = profile.overlaid
        for config in configs:
            table = profile.table(config.name)
            expected = _expected_ratio(profile, config.name) if serve_all else float("nan")
            row_bytes = config.embedding_dim * DATA_TYPE_NUM_BITS[config.data_type] / 8
            hot_bytes += len(table.hot_ids) * trained[config.name] * (config.name in overlaid)
            for name in table.features:
                others = self._features.get(name, (0.0, 0.0))[0]  # tables that it looks up as well
                self._features[name] = (others + row_bytes, expected)
                rows[name] = table.hot_ids
        self._rows = {**dict(list(self._rows.items())[-1:]), profile.fingerprint: rows}
        self._totals = self._totals._replace(
            hot_bytes=hot_bytes if own_bytes is None else own_bytes, all_hot_bytes=hot_bytes
        )

    def expect(self, batch: SplitBatch) -> None:
        """Note a batch that will be looked up."""
        cold, hot = batch.cold.length_per_key(), batch.hot.length_per_key()
        lookups = hot_lookups = 0
        expected = saved = 0.0
        for name, pair, count in zip(batch.hot_features, batch.pairs, hot, strict=True):
            if name in self._features:
                row_bytes, ratio = self._features[name]
                lookups += cold[pair] + count
                hot_lookups += count
                expected += ratio * (cold[pair] + count)
                saved += row_bytes * count
        inputs = batch.cold.stride()
        batches = (1, int(batch.is_pure), inputs, inputs * batch.is_pure)
        self._coming[batch.number] = HotTotals(*batches, lookups, hot_lookups, expected, int(saved))
        while len(self._coming) > _AHEAD:  # batches that nobody looked up
            del self._coming[next(iter(self._coming))]

    def count(self, batch_number: int, *, by_tables: bool = False) -> None:
        """Count a batch that was looked up, by all that serve it: one that is refused is none.

        Args:
            batch_number: how many came before it.
            by_tables: whether the tables serve its hot lookups as well.
        """
        batch = self._coming.pop(batch_number, None)
        if batch is None or not torch.is_grad_enabled():
            return
        if by_tables:
            batch = batch._replace(hot_lookup_count=0, expected_hot_count=0.0, saved_bytes=0)
        self._totals = HotTotals(*map(add, self._totals, batch))


def _expected_ratio(profile: FAEProfile, table: str) -> float:
    """Share of lookups that hot rows are expected to serve; NaN where none were calibrated."""
    if profile.predictions is None:
        return float("nan")
    return profile.predictions.tables[table].hot_lookup_ratio.value
