"""What a step sends between devices in each mode, by what the calibration expects of lookups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from torchrec.modules.embedding_configs import BaseEmbeddingConfig

from trainobs.core.quotients import Interval
from trainobs.core.text import size
from trainobs.fae.profile.cache_statistics import different_rows
from trainobs.fae.profile.predictions import TablePrediction, required
from trainobs.fae.profile.profile import FAEProfile

_FLOAT = 4  # what embeddings and gradients are sent as
_ID = 8
_LENGTH = 4


class StepBytes(NamedTuple):
    """Bytes that the lookups of a rank's step are expected to take, over all steps of a training.

    A rank sends all but its own part of them.

    Attributes:
        stock: of TorchRec's sharder under a table_wise plan, and with each hot row on one rank.
        overlay: with the hot rows on all ranks.
    """

    stock: float
    overlay: float

    def __str__(self) -> str:
        ratio = self.overlay / max(self.stock, 1)
        return (
            f"overlay {ratio:.2f} times, partitioned 1.00 times the {size(self.stock)} of a "
            "table_wise step"
        )


def expected_bytes(
    profile: FAEProfile, configs: Iterable[BaseEmbeddingConfig], ranks: int, batch_size: int
) -> StepBytes:
    """Bytes of pure and mixed steps, weighed by the share of inputs that are all hot.

    TorchRec sends ids to the rows, and embeddings and gradients back and forth, and partitioned hot
    lookups go with the others. With hot rows on all ranks TorchRec does so for the cold lookups of
    a mixed step, with an embedding for each bag; in each step the gradients of the hot rows of a
    rank's batch are sent, and the sums of those of all batches.

    Args:
        profile: with what is expected of its tables.
        configs: of the collection's tables.
        ranks: how many.
        batch_size: inputs of a rank's batch.

    Raises:
        FAEError: the profile has no predictions.
    """
    predictions = required(
        profile.predictions,
        "cannot choose a mode by its cost",
        "make the profile by trainobs.fae.calibrate, or give a mode",
    )
    pure = _known(predictions.all_hot_ratio)
    overlaid = profile.overlaid
    stock = overlay = 0.0
    for config in configs:
        expected = predictions.tables[config.name]
        lookups = expected.lookups_per_input * batch_size
        has_hot = config.name in overlaid
        hot_ratio = max(_known(expected.hot_lookup_ratio) if has_hot else 0.0, pure)
        of_mixed = lookups * (hot_ratio - pure) / (1 - pure) if pure < 1 else 0.0

        def sent(count: float, config: BaseEmbeddingConfig = config) -> float:
            """By TorchRec, for so many lookups."""
            bags = len(config.feature_names) * batch_size
            embeddings = count if profile.table(config.name).is_sequence else bags
            values: float = 2 * embeddings * config.embedding_dim
            return values * _FLOAT + count * _ID + bags * _LENGTH

        stock += sent(lookups)
        overlay += (1 - pure) * sent(lookups - of_mixed)
        if not has_hot:
            continue
        for share, hot in ((pure, lookups), (1 - pure, of_mixed)):
            count = len(profile.table(config.name).hot_ids)
            rows = sum(_hot_rows(expected, count, n * hot) for n in (1, ranks))
            overlay += share * rows * (config.embedding_dim + 1) * _FLOAT  # each with its number
    return StepBytes(stock, overlay)


def _known(ratio: Interval) -> float:
    return float(np.nan_to_num(ratio.value))


def _hot_rows(expected: TablePrediction, hot_count: int, lookups: float) -> float:
    """Hot rows, of so many, that so many lookups of hot rows are expected to be of."""
    ends = np.minimum(np.cumsum(expected.group_rows), hot_count)
    rows = np.diff(ends, prepend=0)
    chances = np.nan_to_num(expected.group_ratios, nan=0.0) / np.maximum(expected.group_rows, 1)
    chances /= max(float((rows * chances).sum()), 1e-12)
    return float(different_rows(rows, chances, lookups).sum())
