"""Checks that a batch has the keys and weights that a sharded collection needs.

Each raises an FAEError if it has not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.core.errors import FAEError
from trainobs.core.hot_rows import HOT_SUFFIX
from trainobs.fae.kjt.split import read_mark
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.batch import SplitBatch

_CANNOT = "cannot look up a batch in a sharded collection"
_LEAVE = "leave the keys of packed batches as they are"


class RepeatedKeysError(FAEError, ValueError):
    """A key comes twice in a batch; a ValueError, as in TorchRec's validation of batches."""


def check_keys(kjt: KeyedJaggedTensor, features: frozenset[str]) -> None:
    """Check that all features are there, and the keys of a packed batch as `pack` gave them.

    Args:
        kjt: a batch, packed or not.
        features: that the collection looks up.
    """
    keys, mark = kjt.keys(), read_mark(kjt)
    if len(set(keys)) < len(keys):
        twice = sorted(key for key in set(keys) if keys.count(key) > 1)
        raise RepeatedKeysError(
            _CANNOT,
            f"keys that come twice: {twice[:5]}",
            "give each feature one key: keys must be unique",
        )
    if not features.issubset(keys):
        _refuse(features.difference(keys), keys, "give batches with all features of the collection")
    if mark is None:
        is_whole = not any(HOT_SUFFIX in key for key in keys)
    else:
        is_whole = mark.keys() == keys and set(mark.hot_features).issubset(mark.features)
    if not is_whole:
        raise FAEError(
            "cannot look up the hot rows of a batch",
            f"keys of a packed batch in another order than pack() gave them: {keys[:8]}",
            _LEAVE,
        )


def check_hot_keys(batch: SplitBatch, features: frozenset[str]) -> None:
    """Check that the hot lookups of all features of the collection are there."""
    lacking = features.difference(batch.hot_features)
    if lacking:
        keys = [f"{feature}{HOT_SUFFIX}..." for feature in batch.hot_features]
        _refuse(lacking, keys, _LEAVE)


def check_served(batch: SplitBatch, profile: FAEProfile, served: frozenset[str]) -> None:
    """Check that all hot lookups of a batch that the loader split are looked up somewhere.

    A stock collection does not see the hot lookups, and would train on the others alone.

    Args:
        batch: with its hot lookups apart.
        profile: whose slots they are.
        served: features of all collections that keep hot rows of it.
    """
    overlaid = profile.overlaid
    for table in profile.tables:
        lost = set(table.features).intersection(batch.hot_features).difference(served)
        if lost and len(table.hot_ids) and table.name in overlaid:
            raise FAEError(
                "cannot look up the hot rows of a batch",
                f"hot lookups of {min(lost)!r} apart, and no collection that keeps the hot rows "
                f"of table {table.name!r}",
                "shard the collection that has it with FAE's sharder and the same profile, or "
                "calibrate without its tables",
            )


def check_order_of_keys(kjt: KeyedJaggedTensor, first: Sequence[str]) -> None:
    """Check that keys are in the order of the first batch, by which TorchRec finds features."""
    if kjt.keys() != first:
        raise FAEError(
            _CANNOT,
            f"keys {kjt.keys()[:8]}; the first batch had {list(first[:8])}",
            "give all batches the same keys in one order, by which TorchRec tells features apart",
        )


def check_undivided(weights: Tensor | None, means: frozenset[str]) -> None:
    """Check that FBGEMM divides the gradients of means, which it does if lookups have no weights.

    TorchRec takes weights of a batch in a collection that is not weighted, too, but for integers.
    `means` are the tables whose means FBGEMM would pool.
    """
    if means and weights is not None and weights.is_floating_point():
        raise FAEError(
            _CANNOT,
            f"weights of lookups, and table {min(means)!r} pools means, whose gradients FBGEMM "
            "does not divide if there are weights",
            "give this collection a batch without weights, plan the table row_wise, or pool sums",
        )


def check_weights(weights: Tensor | None, *, is_weighted: bool) -> None:
    """Check that hot lookups can have the weights that cold ones have.

    TorchRec drops the gradient of weights on their way to other ranks. A feature processor has its
    own where lookups are served. `is_weighted` is whether there must be any.
    """
    if weights is None and is_weighted:
        found = "lookups without weights, in a collection that is weighted"
    elif weights is not None and weights.requires_grad:
        found = "weights of lookups that are learned, as by a feature processor"
    else:
        return
    raise FAEError(
        _CANNOT,
        found,
        "give weights that are not learned; shard a FeatureProcessedEmbeddingBagCollection by "
        "FAEFeatureProcessedEmbeddingBagCollectionSharder or the stock sharder",
    )


def _refuse(lacking: Iterable[str], keys: list[str], do: str) -> None:
    raise FAEError(_CANNOT, f"no feature {min(lacking)!r} among {keys[:8]}", do)
