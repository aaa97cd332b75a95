"""Gradients summed by row: of one rank's lookups, and over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from trainobs.fae.kjt.jagged import constant
from trainobs.fae.sharding.barrier import all_gather

_RUN = 256  # summands that are added up one after the other


class UniqueRows:
    """The rows of a kernel that a rank looked up in one batch, each once.

    Row r belongs to rank r % ranks, which adds up the gradients that all ranks have for it. Made
    without waiting for the device; the numbers of rows are copied to the host meanwhile.

    Args:
        rows: int64[lookups].
        row_count: of the kernel.
        ranks: among which rows are shared out.
    """

    def __init__(self, rows: Tensor, row_count: int, ranks: int = 1) -> None:
        self._ranks = ranks
        self._share = -(-max(1, row_count) // ranks)
        keys = rows % ranks * self._share + rows // ranks if ranks > 1 else rows
        self._keys, self._order = keys.sort(stable=True)
        is_first = torch.ones_like(keys, dtype=torch.bool)
        torch.ne(self._keys[1:], self._keys[:-1], out=is_first[1:])
        self._ends = torch.cumsum(is_first, 0)  # unique rows up to each lookup
        bounds = constant(tuple(rank * self._share for rank in range(ranks + 1)), rows.device)
        below = functional.pad(self._ends, (1, 0))
        below = below.index_select(0, torch.searchsorted(self._keys, bounds))
        self._below = below.to("cpu", non_blocking=True)
        self._copied = torch.cuda.Event() if rows.is_cuda else None  # type: ignore[no-untyped-call]
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(rows.device))  # that of the copy

    @property
    def counts(self) -> list[int]:
        """How many rows there are of each rank."""
        if self._copied is not None:
            self._copied.synchronize()
        return [int(count) for count in torch.diff(self._below)]

    def reduce(
        self, gradients: Tensor, places: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sum the gradients of each row's lookups.

        Takes memory for the unique rows and a `_RUN`th of the lookups.

        Args:
            gradients: float32[n, width].
            places: int64[lookups], which of these each lookup has.
            weights: float32[lookups], by which they are multiplied.

        Returns:
            int64[rows], rank behind rank, and float32[rows, width].
        """
        numbers = torch.arange(1, sum(self.counts) + 1, device=places.device)
        starts = torch.searchsorted(self._ends, numbers)
        keys = self._keys.index_select(0, starts)
        rows = keys % self._share * self._ranks + keys // self._share if self._ranks > 1 else keys
        if weights is not None:
            weights = weights.index_select(0, self._order)
        places = places.index_select(0, self._order)
        return rows, _segment_sums(gradients, places, starts, weights)


def sum_over_ranks(
    rows: Tensor,
    sums: Tensor,
    given: Sequence[int],
    taken: Sequence[int],
    row_count: int,
    group: dist.ProcessGroup,
) -> tuple[Tensor, Tensor]:
    """Add up what all ranks have for each row: sums go to the rank of a row, totals to all ranks.

    Args:
        rows: int64[n], as `UniqueRows.reduce` gives them.
        sums: float32[n, width].
        given: how many rows this rank has of each rank.
        taken: how many rows each rank has of this one.
        row_count: of the kernel.
        group: the ranks.

    Returns:
        int64[m] and float32[m, width], each row once, the same on all ranks to the bit.
    """
    received = sums.new_empty(sum(taken), 1 + sums.shape[1])
    dist.all_to_all_single(received, _packed(rows, sums), list(taken), list(given), group=group)
    owned = UniqueRows(_rows_of(received), row_count)
    places = torch.arange(len(received), device=received.device)
    mine, totals = owned.reduce(received, places)
    return _gather(_packed(mine, totals[:, 1:]), group)


def _gather(mine: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Packed rows and sums of all ranks."""
    ranks = dist.get_world_size(group)
    sizes = torch.empty(ranks, dtype=torch.int64, device=mine.device)
    all_gather(sizes, sizes.new_full((1,), len(mine)), group)
    counts = sizes.tolist()
    longest = max(counts)
    padded = functional.pad(mine, (0, 0, 0, longest - len(mine)))
    gathered = mine.new_empty(ranks * longest, mine.shape[1])
    all_gather(gathered, padded, group)
    parts = [
        part[:count] for part, count in zip(torch.split(gathered, longest), counts, strict=True)
    ]
    packed = torch.cat(parts)
    return _rows_of(packed), packed[:, 1:].contiguous()


def _packed(rows: Tensor, sums: Tensor) -> Tensor:
    """Rows, as bits, before their sums: one collective for both."""
    packed = sums.new_empty(len(rows), 1 + sums.shape[1])
    packed[:, 0] = rows.int().view(torch.float32)
    packed[:, 1:] = sums
    return packed


def _rows_of(packed: Tensor) -> Tensor:
    return packed[:, 0].contiguous().view(torch.int32).long()


def _segment_sums(values: Tensor, places: Tensor, starts: Tensor, weights: Tensor | None) -> Tensor:
    """Sum float32[n, width] `values` at `places`, from each start to the next.

    Long segments, of the hottest rows, are summed in runs: on a GPU a thread adds one run.
    """
    if not len(starts):
        return values[:0]
    runs = torch.arange(0, len(places), _RUN, device=places.device)
    parts, _ = torch.cat([starts, runs]).sort()
    partial = functional.embedding_bag(
        places, values, parts, mode="sum", per_sample_weights=weights
    )
    numbers = torch.arange(len(parts), device=places.device)
    firsts = torch.searchsorted(parts, starts)
    return functional.embedding_bag(numbers, partial, firsts, mode="sum")
