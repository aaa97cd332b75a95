"""Which mode sends fewer bytes between devices, by what the calibration expects of lookups."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from torchrec.modules.embedding_configs import BaseEmbeddingConfig

from trainobs.core.errors import FAEError
from trainobs.fae.profile.profile import FAEProfile

_FLOAT = 4  # what embeddings and gradients are sent as
_ID = 8
_LENGTH = 4


def sends_less_partitioned(
    profile: FAEProfile, configs: Iterable[BaseEmbeddingConfig], ranks: int, batch_size: int
) -> bool:
    """Whether a pure step sends fewer bytes with each hot row on one rank than on all.

    Partitioned, ids go to the rows, and embeddings and gradients back and forth, as in TorchRec's
    table_wise plan; so the cheaper of both modes sends no more than that. On all ranks, the
    gradients of the rows of a rank's batch are sent, and the sums of those of all batches.

    Args:
        profile: with what is expected of its tables.
        configs: of the collection's tables.
        ranks: how many.
        batch_size: inputs of a rank's batch.

    Raises:
        FAEError: the profile has no predictions.
    """
    if profile.predictions is None:
        raise FAEError(
            "cannot choose a mode by its cost",
            "a profile without predictions",
            "make the profile by trainobs.fae.calibrate, or give a mode",
        )
    partitioned = replicated = 0.0
    for config in configs:
        lookups = profile.predictions.tables[config.name].lookups_per_input * batch_size
        bags = len(config.feature_names) * batch_size
        sent = lookups if profile.table(config.name).is_sequence else bags
        partitioned += 2 * sent * config.embedding_dim * _FLOAT + lookups * _ID + bags * _LENGTH
        rows = sum(_different_rows(profile, config.name, inputs * lookups) for inputs in (1, ranks))
        replicated += rows * (config.embedding_dim + 1) * _FLOAT  # each with its number
    return partitioned < replicated


def _different_rows(profile: FAEProfile, table: str, lookups: float) -> float:
    """Hot rows that so many lookups of hot rows are expected to be of."""
    assert profile.predictions is not None
    expected = profile.predictions.tables[table]
    ends = np.minimum(np.cumsum(expected.group_rows), len(profile.table(table).hot_ids))
    rows = np.diff(ends, prepend=0)
    chances = np.nan_to_num(expected.group_ratios, nan=0.0) / np.maximum(expected.group_rows, 1)
    chances /= max(float((rows * chances).sum()), 1e-12)
    unseen = np.exp(lookups * np.log1p(-np.minimum(chances, 1 - 1e-12)))
    return float((rows * (1 - unseen)).sum())
