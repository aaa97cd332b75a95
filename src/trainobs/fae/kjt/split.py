"""Lookups of hot rows, apart from the others in one KeyedJaggedTensor.

A split batch has the keys it had, with the lookups of cold rows. Behind them each key that a table
of the profile serves is paired with a hot key, which has the lookups of hot rows. A value of a hot
key is not a row but a slot: the row's position among the table's hot rows.

    keys      f0  f1  ...  f0#hot:MARK  f1#hot:MARK  ...
    MARK      "mixed" or "pure", "@", and the profile's fingerprint

So everything that a sharder must know travels in the keys, which live through `to`, `pin_memory`,
pickle, loader workers and pytree alike, and nothing is read from a device:

* which hot rows the slots belong to: the fingerprint;
* whether the step is *pure*. That is a promise to all ranks and not a property of one batch: every
  rank trains on a pure batch in the same step, or none does. A batch without one cold lookup
  may well be mixed, because another rank's is not. What nobody made a promise about is mixed.

`kjt.length_per_key()` is known on the host too, and so are the sizes of both parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.core.errors import FAEError
from trainobs.core.hot_rows import HOT_SUFFIX
from trainobs.core.log import logger
from trainobs.fae.kjt.inputs import id_text
from trainobs.fae.profile.profile import FAEProfile

BAD = -2
"""Stands for the slot of an id that is outside of its table."""

_INTEGERS = (torch.int64, torch.int32)
_WIDER = {
    **dict.fromkeys((torch.uint8, torch.int8, torch.int16, torch.uint16), torch.int32),
    **dict.fromkeys((torch.uint32, torch.uint64), torch.int64),
}
_WHOSE = (
    "The bounds_check_mode of its tables decides: WARNING (the default) and IGNORE take other rows "
    "(on hosts training may end at -1), FATAL ends the training"
)
_TOLD: set[str] = set()  # features of which it was said that they ask for rows that are not there


class SplitMark(NamedTuple):
    """What the keys of a split batch say.

    Attributes:
        features: keys with the lookups of cold rows, all that the batch had.
        hot_features: features that are paired with a hot key, in the order of the hot keys.
        fingerprint: of the profile whose slots the hot keys have.
        pure: whether all ranks promised that their batches of this step have no cold lookup.
    """

    features: tuple[str, ...]
    hot_features: tuple[str, ...]
    fingerprint: str
    pure: bool

    @property
    def pairs(self) -> tuple[int, ...]:
        """For each hot key, the index of the key that it is paired with."""
        return tuple(self.features.index(feature) for feature in self.hot_features)

    def keys(self) -> list[str]:
        """The keys of a batch so marked."""
        end = f"{HOT_SUFFIX}{'pure' if self.pure else 'mixed'}@{self.fingerprint}"
        return [*self.features, *(feature + end for feature in self.hot_features)]


@dataclass(frozen=True)
class SlotMap:
    """Slots of all rows, as tensors, by the feature that looks them up.

    Attributes:
        slots: for each feature int32[rows of its table], -1 for a cold row; features of one table
            share one tensor.
        fingerprint: of the profile.
        keeps_order: whether a table's lookups are a sequence, or their places in a bag count.
            Parted lookups have no order among each other, so only batches without a cold one are
            parted.
    """

    slots: Mapping[str, Tensor]
    fingerprint: str
    keeps_order: bool = False

    @classmethod
    def from_profile(cls, profile: FAEProfile) -> SlotMap:
        """The slots of a profile, on the host: 4 bytes for each row of its tables.

        In tables that `profile.overlaid` leaves out every row is cold.
        """
        slots: dict[str, Tensor] = {}
        overlaid = profile.overlaid
        for table in profile.tables:
            if table.name in overlaid:
                tensor = torch.from_numpy(profile.slots(table.name))
            else:
                tensor = torch.tensor([-1], dtype=torch.int32).expand(table.row_count)
            slots.update(dict.fromkeys(table.features, tensor))
        keeps_order = any(t.is_sequence or t.is_positional for t in profile.tables)
        return cls(slots, profile.fingerprint, keeps_order)

    def mark(self, kjt: KeyedJaggedTensor) -> SplitMark:
        """The mark of a batch that is split by these slots, as mixed.

        Raises:
            FAEError: it has no feature that a table of the profile has.
        """
        return mark_of(kjt, self.slots, self.fingerprint)

    def lookup(self, kjt: KeyedJaggedTensor) -> Tensor:
        """Slot of each value of a batch, see `lookup_values`."""
        return self.lookup_values(kjt.keys(), ids_of(kjt), kjt.offset_per_key())

    def lookup_values(
        self, features: Sequence[str], values: Tensor, bounds: Sequence[int]
    ) -> Tensor:
        """Slot of each value: int32, -1 for cold rows and for features that no table serves.

        Ids outside their table are `BAD` and no hot rows: the tables' bounds check decides.

        Args:
            features: that have the values.
            values: of one feature behind those of the one before.
            bounds: where the values of each feature begin, and where those of the last end.
        """
        slots = torch.full(values.shape, -1, dtype=torch.int32, device=values.device)
        for i, feature in enumerate(features):
            rows = self.slots.get(feature)
            if rows is None:
                continue
            part = slice(bounds[i], bounds[i + 1])
            try:
                torch.index_select(rows, 0, values[part], out=slots[part])
            except (IndexError, RuntimeError):
                is_row = (values[part] >= 0) & (values[part] < len(rows))
                if is_row.all():
                    raise
                tell_of_bad_ids(feature, values[part], is_row, _WHOSE)
                found = rows.index_select(0, values[part].masked_fill(~is_row, 0))
                slots[part] = found.masked_fill(~is_row, BAD)
        return slots


def tell_of_bad_ids(feature: str, ids: Tensor, is_row: Tensor, becomes: str) -> None:
    """Warn of ids that are outside of their table, once for each feature.

    Args:
        feature: that has them.
        ids: of a batch, or of several.
        is_row: whether each is inside.
        becomes: what is done about them.
    """
    if feature not in _TOLD:
        _TOLD.add(feature)
        logger.warning(
            "trainobs: feature %r asks for rows that are not there: id %s, %d of %d ids that were "
            "looked at. %s; repair the data.",
            feature,
            id_text(int(ids[~is_row][0])),
            int((~is_row).sum()),
            len(ids),
            becomes,
        )


def mark_of(kjt: KeyedJaggedTensor, known: Collection[str], fingerprint: str) -> SplitMark:
    """The mark of a batch that is split as mixed.

    Args:
        kjt: the batch.
        known: features that tables of the profile have.
        fingerprint: of the profile.

    Raises:
        FAEError: it has no such feature.
    """
    keys = tuple(kjt.keys())
    served = tuple(feature for feature in keys if feature in known)
    if not served:
        _refuse(
            f"features {list(keys[:5])}, none of which a table of the profile has",
            "give pack() the `kjt` that the profile's tables look up, or calibrate again",
        )
    return SplitMark(keys, served, fingerprint, False)


def read_mark(kjt: KeyedJaggedTensor) -> SplitMark | None:
    """What the keys say; None where the batch is not split. Reads no tensor."""
    keys = kjt.keys()
    if not keys or HOT_SUFFIX not in keys[-1]:
        return None
    end = keys[-1][keys[-1].index(HOT_SUFFIX) :]
    kind, _, fingerprint = end.removeprefix(HOT_SUFFIX).partition("@")
    hot = tuple(key.removesuffix(end) for key in keys if key.endswith(end))
    return SplitMark(tuple(keys[: len(keys) - len(hot)]), hot, fingerprint, kind == "pure")


def is_split(kjt: KeyedJaggedTensor) -> bool:
    """Whether hot lookups stand apart already."""
    return read_mark(kjt) is not None


def cold_count(kjt: KeyedJaggedTensor, mark: SplitMark) -> int:
    """Lookups of cold rows in the profile's tables; 0 in a pure batch.

    Features without a hot key belong to other tables and are not counted. Reads nothing from a
    device, in a batch that was split on the host.
    """
    hot = set(mark.hot_features)
    lengths = zip(mark.features, kjt.length_per_key(), strict=False)
    return sum(length for feature, length in lengths if feature in hot)


def split(kjt: KeyedJaggedTensor, slots: SlotMap) -> KeyedJaggedTensor:
    """Put lookups of hot rows apart, as slots; marked as mixed.

    Where the batch is on a device this waits for the device, to know how many lookups are hot;
    `pack` splits on the host.

    Args:
        kjt: a batch as the model takes it; empty bags and weights are fine. Slots come in the type
            of the ids, int64 or int32; other integers become one of these.
        slots: of the profile, on the same device.

    Returns:
        A new KeyedJaggedTensor in the layout above; inputs and the order of lookups within a
        bag are as they were.

    Raises:
        FAEError: the batch is split already, has a stride for each key (VBE), ids that are no
            integers, or no feature that the profile knows.
    """
    check_splittable(kjt)
    return split_by(slots.lookup(kjt), kjt, slots.mark(kjt))


def split_by(found: Tensor, kjt: KeyedJaggedTensor, mark: SplitMark) -> KeyedJaggedTensor:
    """As `split`, of a batch whose values' slots are known.

    Args:
        found: slots of the values, as `SlotMap.lookup` gives them.
        kjt: the batch.
        mark: that the result is to have.
    """
    lengths = integers(kjt.lengths()).view(len(mark.features), kjt.stride())
    parts = part(Bags(lengths, ids_of(kjt), kjt.weights_or_none()), found, mark.pairs)
    result = KeyedJaggedTensor(
        keys=mark.keys(),
        values=parts.values,
        weights=parts.weights,
        lengths=parts.lengths.view(-1),
        stride=kjt.stride(),
    )
    result.offset_per_key()  # and length_per_key, now, while no device has to be asked
    return result


class Bags(NamedTuple):
    """Lookups, key by key.

    Attributes:
        lengths: values in each bag, keys by inputs.
        values: of all bags, in the order of `lengths`.
        weights: of the values, or None.
    """

    lengths: Tensor
    values: Tensor
    weights: Tensor | None


def part(bags: Bags, found: Tensor, pairs: Sequence[int]) -> Bags:
    """Part cold lookups from hot ones.

    Args:
        bags: whose values are rows.
        found: slots of the values, negative for others than hot rows.
        pairs: for each hot key, the index of the key that it is paired with.

    Returns:
        Keys, and hot keys behind them: rows of all cold lookups, then slots of all hot ones.
    """
    lengths, values, weights = bags
    is_hot = found >= 0
    hot_lengths = count_hot(is_hot, lengths.view(-1)).view(lengths.shape)
    cold_lengths = lengths - hot_lengths
    if len(pairs) < len(lengths):
        hot_lengths = hot_lengths[list(pairs)]
    cold, hot = places_of(~is_hot), places_of(is_hot)
    parted = torch.cat([values.index_select(0, cold), found.index_select(0, hot).to(values.dtype)])
    if weights is not None:
        weights = weights.index_select(0, torch.cat([cold, hot]))
    return Bags(torch.cat([cold_lengths, hot_lengths]), parted, weights)


def integers(lengths: Tensor) -> Tensor:
    """Lengths in a type that can count a whole batch, their own where it can."""
    return lengths if lengths.dtype in _INTEGERS else lengths.to(torch.int32)


def ids_of(kjt: KeyedJaggedTensor) -> Tensor:
    """The ids of a batch in a type that holds slots too; other integers than those get a copy."""
    ids: Tensor = kjt.values()
    return ids.to(_WIDER.get(ids.dtype, ids.dtype))


def count_hot(is_hot: Tensor, lengths: Tensor) -> Tensor:
    """Hot values in each bag, in the type of the lengths.

    Args:
        is_hot: bool, one a value.
        lengths: values in each bag; they add up to the values.
    """
    if is_hot.device.type == "cpu" and is_one_hot(lengths, len(is_hot)):
        return is_hot.to(lengths.dtype)
    sums = torch.zeros(len(is_hot) + 1, dtype=lengths.dtype, device=lengths.device)
    torch.cumsum(is_hot, 0, dtype=lengths.dtype, out=sums[1:])
    ends = sums.index_select(0, torch.cumsum(lengths, 0))
    return torch.diff(ends, prepend=ends.new_zeros(1))


def is_one_hot(lengths: Tensor, value_count: int) -> bool:
    """Whether each bag has one value; waits for a device that has the lengths."""
    if lengths.numel() != value_count:
        return False
    is_one = lengths.numpy() == 1 if lengths.device.type == "cpu" else lengths == 1
    return bool(is_one.all())


def places_of(mask: Tensor) -> Tensor:
    """Where a mask is set. On the host by numpy, which takes an eighth of torch's time."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return torch.nonzero(mask).view(-1)


def check_splittable(kjt: KeyedJaggedTensor) -> None:
    """Whether `split` can take a batch.

    Raises:
        FAEError: it cannot.
    """
    if is_split(kjt):
        _refuse("one that is split already", "give pack() the loader itself, not a packed one")
    if kjt.variable_stride_per_key() or kjt.inverse_indices_or_none() is not None:
        _refuse(
            "a stride for each key (VBE), or inverse indices",
            "give batches in which each feature has one bag an input",
        )
    if kjt.values().dtype not in (*_INTEGERS, *_WIDER):
        _refuse(
            f"ids of {kjt.values().dtype}", "give ids as integers, such as int64; floats lose some"
        )
    if kjt.offset_per_key()[-1:] != [kjt.values().numel()]:
        _refuse(
            f"{kjt.values().numel()} ids and lengths that add up to {kjt.offset_per_key()[-1:]}",
            "give a KeyedJaggedTensor whose lengths fit its values",
        )


def _refuse(found: str, do: str) -> None:
    raise FAEError("cannot split a batch into hot and cold lookups", found, do)
