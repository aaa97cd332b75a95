"""What the hot rows of a sharded collection served: numbers of the host, for whoever observes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from operator import add
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec.modules.embedding_configs import DATA_TYPE_NUM_BITS, BaseEmbeddingConfig

from trainobs.core.hot_rows import HotTotals
from trainobs.fae.kjt.split import HOT_SUFFIX, overlaid_tables
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.shard.batch import SplitBatch

_Slots = tuple[str, NDArray[np.int64]]

_AHEAD = 64  # batches that a pipeline may have on their way


class _Feature(NamedTuple):
    """A feature that looks a table with hot rows up.

    Attributes:
        row_bytes: weights of a row.
        expected_ratio: share of its lookups that calibration expects hot rows to serve; NaN where
            hot rows were given, not calibrated.
    """

    row_bytes: float
    expected_ratio: float


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

    A batch is counted when it is looked up, not when it is sent ahead, and only where autograd is
    on: an evaluation is none of the training.

    Attributes:
        syncing: the time that it takes to keep hot rows and tables equal.
    """

    def __init__(self) -> None:
        self.syncing = Stopwatch()
        self._totals = HotTotals()
        self._coming: dict[int, HotTotals] = {}
        self._features: dict[str, _Feature] = {}
        self._twins: dict[str, dict[str, _Slots]] = {}  # by profile: this one, the one before

    def totals(self) -> HotTotals:
        """See `ServesHotRows`."""
        return self._totals._replace(sync_ns=self.syncing.total_ns)

    def slots_of_key(self, key: str) -> _Slots | None:
        """See `TellsOfHotRows`."""
        feature, _, mark = key.partition(HOT_SUFFIX)
        return self._twins.get(mark.partition("@")[2], {}).get(feature)

    def lay(self, profile: FAEProfile, configs: Iterable[BaseEmbeddingConfig], share: int) -> None:
        """Hear which rows are hot from now on.

        Args:
            profile: which rows are hot.
            configs: of the collection's tables.
            share: ranks that have each a part of the hot rows; 1 where each has all.
        """
        self._features = {}
        twins: dict[str, _Slots] = {}
        hot_bytes = 0
        overlaid = overlaid_tables(profile)
        for config in configs:
            table = profile.table(config.name)
            expected = _expected_ratio(profile, config.name)
            row_bytes = config.embedding_dim * DATA_TYPE_NUM_BITS[config.data_type] / 8
            hot_bytes += table.hot_bytes * (config.name in overlaid)
            for name in table.features:
                self._features[name] = _Feature(row_bytes, expected)
                twins[name] = (name, table.hot_ids)
        self._twins = {**dict(list(self._twins.items())[-1:]), profile.fingerprint: twins}
        self._totals = self._totals._replace(hot_bytes=hot_bytes // share)

    def expect(self, batch: SplitBatch) -> None:
        """Hear of a batch that is going to be looked up."""
        cold, hot = batch.cold.length_per_key(), batch.hot.length_per_key()
        lookups = hot_lookups = 0
        expected = saved = 0.0
        for name, twin, count in zip(batch.hot_features, batch.twins, hot, strict=True):
            feature = self._features.get(name)
            if feature is not None:
                lookups += cold[twin] + count
                hot_lookups += count
                expected += feature.expected_ratio * (cold[twin] + count)
                saved += feature.row_bytes * count
        inputs = batch.cold.stride()
        self._coming[batch.number] = HotTotals(
            1,
            int(batch.is_pure),
            inputs,
            inputs * batch.is_pure,
            lookups,
            hot_lookups,
            expected,
            int(saved),
        )
        while len(self._coming) > _AHEAD:  # batches that nobody looked up
            del self._coming[next(iter(self._coming))]

    def count(self, batch_number: int, *, by_tables: bool = False) -> None:
        """Count a batch that is looked up.

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
    if profile.predictions is None:
        return float("nan")
    return profile.predictions.tables[table].hot_lookup_ratio.value


class TellsOfHotRows:
    """What a sharded collection with hot rows tells observers, who know it by these names alone."""

    _overlay: Any

    @property
    def served_by_hot_rows(self) -> ServedCounts:
        """What the hot rows did; see `trainobs.core.hot_rows`."""
        served: ServedCounts = self._overlay.served
        return served

    def slots_of_key(self, key: str) -> _Slots | None:
        """Feature of a key whose values are slots, and the row of each; None for other keys.

        See `trainobs.embeddings.sites.Site`.
        """
        slots: _Slots | None = self._overlay.served.slots_of_key(key)
        return slots
