"""Where the lookups of sequences are, after hot ones were taken apart from cold ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.core.errors import FAEError
from trainobs.fae.kjt.jagged import lengths_of
from trainobs.fae.kjt.split import cold_count, read_mark
from trainobs.fae.sharding.batch import FeatureSequence, SlotRows, SplitBatch, WholeBatch


def check_order(batch: KeyedJaggedTensor, what: str = "the sequences") -> None:
    """Check that the order of lookups is known.

    Args:
        batch: packed or not.
        what: of the batch, needs it.

    Raises:
        FAEError: it is not: a mixed batch came split.
    """
    mark = read_mark(batch)
    if mark is not None and cold_count(batch, mark):
        raise FAEError(
            f"cannot look up {what} of a batch",
            "cold lookups in a batch that came apart, and so without the order of its lookups",
            "pack with the profile that calibrate() made of these tables, or give the batch whole",
        )


def sequences(
    batch: SplitBatch, outputs: Iterable[tuple[str, int]], ids: SlotRows | None
) -> list[FeatureSequence]:
    """The sequences of a batch, for each output. Reads nothing from a device.

    Args:
        batch: whose order is known.
        outputs: feature of each, and beyond how many rows ids come as 0; 0 if all as they came.
        ids: rows of slots, if they are needed.
    """
    cold = batch.cold.length_per_key()
    hot = dict(zip(batch.pairs, batch.hot.length_per_key(), strict=True))
    position = {key: at for at, key in enumerate(batch.cold.keys())}
    if batch.whole is not None:
        counts = [hot.get(key, 0) for key in range(len(cold))]
        by_key = whole_sequences(batch.whole, cold, counts, ids is not None)
    else:
        by_key = _of_hot(batch, ids)
    found = []
    for feature, rows in outputs:
        key = position[feature]
        one = by_key[key]
        if one.ids is not None and rows:  # -1 is a row that was pruned
            one = one._replace(ids=one.ids.masked_fill((one.ids < -1) | (one.ids >= rows), 0))
        is_one_kind = not hot.get(key, 0) or not cold[key]
        found.append(one._replace(order=None) if is_one_kind else one)
    return found


def whole_sequences(
    whole: WholeBatch, cold: Sequence[int], hot: Sequence[int], with_ids: bool
) -> dict[int, FeatureSequence]:
    """Sequences of lookups that were split here, by key.

    Args:
        whole: before they were split.
        cold: how many are cold, of each key.
        hot: how many are hot.
        with_ids: whether ids are needed.
    """
    kjt, is_hot = whole
    counts = kjt.length_per_key()
    hot_before = torch.cumsum(is_hot, 0) - is_hot.long()
    cold_before = torch.arange(len(is_hot), device=is_hot.device) - hot_before
    first_hot = list(accumulate(hot, initial=0))
    first_cold = list(accumulate(cold, initial=0))
    shifts = torch.tensor(
        [  # of a feature: its hot lookups begin behind its cold ones, and these at 0
            [cold[key] - first_hot[key] for key in range(len(counts))],
            [-first_cold[key] for key in range(len(counts))],
        ]
    )
    hot_shift, cold_shift = torch.repeat_interleave(
        shifts.to(is_hot.device),
        torch.tensor(counts, device=is_hot.device),
        dim=1,
        output_size=len(is_hot),
    )
    order = torch.where(is_hot, hot_before + hot_shift, cold_before + cold_shift)
    rows = torch.split(kjt.values(), counts) if with_ids else [None] * len(counts)
    parts = zip(lengths_of(kjt), torch.split(order, counts), rows, strict=True)
    return {key: FeatureSequence(*part) for key, part in enumerate(parts)}


def _of_hot(batch: SplitBatch, ids: SlotRows | None) -> dict[int, FeatureSequence]:
    """Sequences of a batch without cold lookups, by key of `cold`, of paired keys only."""
    counts = batch.hot.length_per_key()
    rows: Sequence[Tensor | None] = [None] * len(counts)
    if ids is not None:
        of_slots = ids.lookup(batch.hot, batch.hot_features).to(batch.cold.values().dtype)
        rows = torch.split(of_slots, counts)
    parts = zip(batch.pairs, lengths_of(batch.hot), rows, strict=True)
    return {key: FeatureSequence(lengths, None, of_key) for key, lengths, of_key in parts}
