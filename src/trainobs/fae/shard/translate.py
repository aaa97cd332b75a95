"""Slots of hot rows translated to other numbers of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.fae.kjt.constants import constant
from trainobs.fae.profile.profile import FAEProfile


class Translation:
    """Another number for each hot row.

    Args:
        numbers: int64, of each table, in the order of its slots.
        profile: whose slots they are.
        device: where batches are.
    """

    def __init__(
        self, numbers: Mapping[str, Tensor], profile: FAEProfile, device: torch.device
    ) -> None:
        self._starts: dict[str, int] = {}
        start = 0
        for table, of_table in numbers.items():
            self._starts.update(dict.fromkeys(profile.table(table).features, start))
            start += len(of_table)
        self._numbers = torch.cat([torch.zeros(0, dtype=torch.int64), *numbers.values()]).to(device)

    def of(self, hot: KeyedJaggedTensor, features: Sequence[str]) -> Tensor:
        """int64[lookups]: the numbers in the place of slots.

        Args:
            hot: lookups of hot rows, as slots.
            features: that its keys stand for.
        """
        starts = constant(tuple(self._starts.get(f, 0) for f in features), hot.device())
        counts = hot.lengths().view(len(features), -1).sum(1)
        lookups = hot.values().numel()
        shifts = torch.repeat_interleave(starts, counts, output_size=lookups)
        return self._numbers.index_select(0, (hot.values() + shifts).long())
