"""Slots of hot rows in little memory, for batches that come whole to a device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.fae.kjt.jagged import by_lookup
from trainobs.fae.kjt.split import SplitMark, check_splittable, mark_of
from trainobs.fae.profile.profile import FAEProfile

_BLOCK = 256  # rows that share a count of hot rows before them
_BYTES = 4 + _BLOCK // 8 * 2  # of a block


class FoundSlots(NamedTuple):
    """The lookups of a batch.

    Attributes:
        slots: int32[values], -1 for cold rows, features that no table serves and bad ids.
        is_bad: bool[values], whether an id is outside of its feature's tables.
    """

    slots: Tensor
    is_bad: Tensor


class HotBitmap:
    """Which rows are hot, and the slot of each that is: 0.27 bytes a row.

    A row has a bit; eight rows a byte of bits and the number of hot rows before them in their
    block; a block of 256 rows the number of hot rows before it in its table.

    Args:
        profile: where the hot rows stand. In tables that its `overlaid` leaves out every row is
            cold.
        device: where batches are.
    """

    def __init__(self, profile: FAEProfile, device: torch.device) -> None:
        self._profile = profile
        self._places: dict[str, tuple[int, int]] = {}  # first row and rows, by feature
        blocks: list[NDArray[np.int32]] = []
        octets: list[NDArray[np.uint8]] = []
        overlaid = profile.overlaid
        first = 0
        for table in profile.tables:
            known = [self._places[f] for f in table.features if f in self._places]
            place = known[0] if known else (first, table.row_count)  # shared: alike, or left out
            if table.name not in overlaid:
                place = (0, 0)
            elif not known:
                before, of_octets = _count(table.hot_ids, table.row_count)
                blocks.append(before)
                octets.append(of_octets)
                first += len(before) * _BLOCK
            self._places.update(dict.fromkeys(table.features, place))
        none = np.zeros((1, 2), np.uint8)
        self._blocks = torch.from_numpy(np.concatenate([*blocks, none[:, 0].astype(np.int32)]))
        self._octets = torch.from_numpy(np.concatenate([*octets, none]))
        self._blocks, self._octets = self._blocks.to(device), self._octets.to(device)
        self._below = torch.from_numpy(_set_below()).to(device)

    def mark(self, kjt: KeyedJaggedTensor) -> SplitMark:
        """The mark of a batch that is split by these slots, as mixed; see `SlotMap.mark`."""
        return mark_of(kjt, self._places, self._profile.fingerprint)

    def lookup(self, kjt: KeyedJaggedTensor) -> FoundSlots:
        """Slot of each value; waits for no device.

        Raises:
            FAEError: it is no batch that `split` can take.
        """
        check_splittable(kjt)
        keys, values = kjt.keys(), kjt.values().long()
        places = [self._places.get(key, (0, 0)) for key in keys]
        first, rows = by_lookup(kjt, *zip(*places, strict=True))
        is_row = (values >= 0) & (values < rows)
        at = values.masked_fill(~is_row, 0) + first
        octet = self._octets.index_select(0, at >> 3)
        bits, before = octet[:, 0].long(), octet[:, 1].int()
        is_hot = is_row & (bits >> (at & 7) & 1).bool()
        before += self._blocks.index_select(0, at // _BLOCK)
        slots = before + self._below.index_select(0, bits << 3 | at & 7)
        return FoundSlots(slots.masked_fill_(~is_hot, -1), ~is_row & (rows > 0))


def bitmap_bytes(row_counts: Iterable[int]) -> int:
    """What a `HotBitmap` of tables with so many rows takes."""
    return sum(-(-rows // _BLOCK) * _BYTES for rows in row_counts)


def _count(
    hot_ids: NDArray[np.int64], row_count: int
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Of a table: hot rows before each block; bits, and hot rows before, of each eight rows."""
    block_count = -(-row_count // _BLOCK)
    is_hot = np.zeros(block_count * _BLOCK, dtype=bool)
    is_hot[hot_ids] = True
    bits = np.packbits(is_hot, bitorder="little")
    counts = is_hot.reshape(block_count, -1, 8).sum(axis=2)
    in_block = (np.cumsum(counts, axis=1) - counts).astype(np.uint8)  # at most 248
    of_blocks = counts.sum(axis=1, dtype=np.int64)
    before = (np.cumsum(of_blocks) - of_blocks).astype(np.int32)
    return before, np.stack([bits, in_block.reshape(-1)], axis=1)


def _set_below() -> NDArray[np.int32]:
    """For each byte and each place in it, how many bits below are set."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return (np.cumsum(bits, axis=1, dtype=np.int32) - bits).astype(np.int32).reshape(-1)
