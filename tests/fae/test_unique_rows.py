"""Gradients summed by row, and the memory that this takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainobs.fae.sharding.unique_rows import UniqueRows


def _expected(rows: Tensor, gradients: Tensor, row_count: int) -> Tensor:
    return torch.zeros(row_count, gradients.shape[1]).index_add_(0, rows, gradients)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("lookups", [0, 1, 7, 5000])
def test_sums_are_those_of_each_row(ranks: int, lookups: int) -> None:
    draw = torch.Generator().manual_seed(ranks + lookups)
    row_count = 50
    rows = (torch.rand(lookups, generator=draw).pow(4) * row_count).long()  # some have long runs
    weights = torch.rand(lookups, generator=draw)
    gradients = torch.randn(max(1, lookups // 3), 4, generator=draw)
    places = torch.randint(len(gradients), (lookups,), generator=draw)
    unique = UniqueRows(rows, row_count, ranks)
    found, sums = unique.reduce(gradients, places, weights)
    assert sorted(found.tolist()) == rows.unique().tolist()
    assert unique.counts == [int((found % ranks == rank).sum()) for rank in range(ranks)]
    assert (found % ranks).tolist() == sorted((found % ranks).tolist())
    each = gradients[places] * weights[:, None]
    assert torch.allclose(sums, _expected(rows, each, row_count)[found], atol=1e-4)


class _Largest(TorchDispatchMode):
    """The largest tensor that an operator made."""

    numel = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple) else (result,)
        sizes = [part.untyped_storage().nbytes() // 4 for part in made if isinstance(part, Tensor)]
        self.numel = max(self.numel, *sizes, 0)
        return result


def test_memory_is_that_of_unique_rows() -> None:
    lookups, width, row_count, inputs = 100_000, 64, 1000, 500
    rows = torch.arange(lookups) % row_count
    gradients = torch.ones(inputs, width)
    places = torch.arange(lookups) % inputs
    with _Largest() as largest:
        unique = UniqueRows(rows, row_count, 2)
        unique.reduce(gradients, places, torch.ones(lookups))
    assert largest.numel <= max((row_count + lookups // 256 + 1) * width, 2 * lookups + 2)
    assert largest.numel < lookups * width / 30
