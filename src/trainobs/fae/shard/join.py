"""Split batches made whole again: slots back to rows, and each bag in one place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.fae.kjt.constants import constant
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.shard.translate import Translation


class Joiner:
    """Joins what `split` took apart.

    Args:
        profile: whose slots the batches hold.
        device: where they are.
    """

    def __init__(self, profile: FAEProfile, device: torch.device) -> None:
        ids = {table.name: torch.from_numpy(table.hot_ids) for table in profile.tables}
        self._ids = Translation(ids, profile, device)

    def join(
        self, cold: KeyedJaggedTensor, hot: KeyedJaggedTensor, twins: Sequence[int]
    ) -> KeyedJaggedTensor:
        """The batch as it was, but for the order of lookups in a bag.

        Args:
            cold: lookups of cold rows.
            hot: lookups of hot rows, as slots.
            twins: feature of `cold` that each key of `hot` belongs to.
        """
        keys, stride = cold.keys(), cold.stride()
        cold_lengths = cold.lengths().view(len(keys), stride)
        hot_lengths = hot.lengths().view(len(twins), stride).to(cold_lengths.dtype)
        index = constant(tuple(twins), cold_lengths.device)
        rows = self._ids.of(hot, [keys[twin] for twin in twins]).to(cold.values().dtype)
        bags = torch.cat(
            [
                _bags(cold_lengths, torch.arange(len(keys), device=index.device), stride, cold),
                _bags(hot_lengths, index, stride, hot),
            ]
        )
        order = bags.argsort(stable=True)
        counts = list(cold.length_per_key())
        for twin, count in zip(twins, hot.length_per_key(), strict=True):
            counts[twin] += count
        weights = cold.weights_or_none()
        return KeyedJaggedTensor(
            keys=keys,
            values=torch.cat([cold.values(), rows]).index_select(0, order),
            weights=None
            if weights is None
            else torch.cat([weights, hot.weights()]).index_select(0, order),
            lengths=cold_lengths.index_add(0, index, hot_lengths).view(-1),
            stride=stride,
            length_per_key=counts,  # or TorchRec asks the device
        )


def _bags(lengths: Tensor, features: Tensor, stride: int, kjt: KeyedJaggedTensor) -> Tensor:
    """Number of the bag of each lookup, counted over the features of the whole batch."""
    numbers = features[:, None] * stride + torch.arange(stride, device=features.device)
    return torch.repeat_interleave(
        numbers.view(-1), lengths.reshape(-1), output_size=kjt.values().numel()
    )
