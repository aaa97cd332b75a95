"""The inputs of several batches, to be taken out in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.core.errors import FAEError
from trainobs.fae.kjt.find import KeyPath
from trainobs.fae.kjt.leaves import input_count, take_apart
from trainobs.fae.kjt.split import (
    BAD,
    Bags,
    SlotMap,
    count_hot,
    ids_of,
    integers,
    is_one_hot,
    part,
)
from trainobs.fae.packing.pool_in_c import PoolInC

_ONE_FORM = (
    "give a loader whose batches have one form, with one row an input in every tensor or array: a "
    "list of values, one an input, is none; np.array(values) is"
)
_NAMED = 8
"""Places of a batch that a message names."""


class BagPool:
    """The bags of several KeyedJaggedTensors with the same keys, a key behind the other.

    Args:
        kjts: without strides for each key; not empty.
        slots: of hot rows, if those of the values are to be taken along.
    """

    def __init__(self, kjts: Sequence[KeyedJaggedTensor], slots: SlotMap | None) -> None:
        self.keys = list(kjts[0].keys())
        self.lengths = torch.cat(
            [integers(kjt.lengths()).view(len(self.keys), kjt.stride()) for kjt in kjts], 1
        )
        value_count = sum(kjt.values().numel() for kjt in kjts)
        self._is_one_hot = is_one_hot(self.lengths, value_count)
        self.values = self._by_key(kjts, [ids_of(kjt) for kjt in kjts])
        weights = [weights for kjt in kjts if (weights := kjt.weights_or_none()) is not None]
        self.weights = self._by_key(kjts, weights) if weights else None
        self.slots, self.has_bad_ids = None, False
        if slots is not None:
            of_keys = map(sum, zip(*(kjt.length_per_key() for kjt in kjts), strict=True))
            bounds = list(accumulate(of_keys, initial=0))
            self.slots = slots.lookup_values(self.keys, self.values, bounds)
            self.has_bad_ids = bool((self.slots == BAD).any())
        self._starts = self._find_starts()
        bags = Bags(self.lengths, self.values, self.weights)
        self._in_c = PoolInC.from_bags(bags, self.slots, self._starts)

    def put(self, inputs: Tensor, pairs: Sequence[int] | None, into: Bags) -> list[int]:
        """Write the bags of some inputs.

        Args:
            inputs: in their order.
            pairs: to part the lookups, see `fae.kjt.split.part`; None to leave them whole.
            into: of one dimension each, and as long as that is.

        Returns:
            Values of each key, and of each hot key.
        """
        if self._in_c is not None:
            return self._in_c.put(inputs, pairs, into)
        bags, slots = self._take(inputs)
        if slots is not None and pairs is not None:
            bags = part(bags, slots, pairs)
        for room, tensor in zip(into, bags, strict=True):
            if room is not None and tensor is not None:
                room.copy_(tensor.view(-1))
        counts: list[int] = bags.lengths.sum(1).tolist()
        return counts

    def _take(self, inputs: Tensor) -> tuple[Bags, Tensor | None]:
        """The bags of some inputs, in their order, and slots of their values if there are any."""
        first_bags = (torch.arange(len(self.keys)) * self.lengths.shape[1])[:, None]
        places = (first_bags + inputs).view(-1)
        lengths = self.lengths.view(-1).index_select(0, places)
        if self._starts is not None:
            places = _all_places(self._starts.index_select(0, places), lengths)
        bags = Bags(
            lengths.view(len(self.keys), -1) if len(inputs) else self.lengths[:, :0],
            self.values.index_select(0, places),
            None if self.weights is None else self.weights.index_select(0, places),
        )
        return bags, None if self.slots is None else self.slots.index_select(0, places)

    def counts(self, batches: Sequence[Tensor]) -> list[int]:
        """Values of the inputs of each batch."""
        if self._is_one_hot:
            return [len(inputs) * len(self.keys) for inputs in batches]
        of_inputs = self.lengths.sum(0)
        return [int(of_inputs.index_select(0, inputs).sum()) for inputs in batches]

    def all_hot(self, keys: Sequence[int]) -> Tensor:
        """Whether each input asks for hot rows alone, in some of the keys: bool[inputs]."""
        assert self.slots is not None
        if self._in_c is not None:
            return self._in_c.all_hot(keys)
        hot = count_hot(self.slots >= 0, self.lengths.view(-1)).view(self.lengths.shape)
        is_hot = hot == self.lengths
        return (is_hot if len(keys) == len(is_hot) else is_hot[list(keys)]).all(0)

    def _by_key(self, kjts: Sequence[KeyedJaggedTensor], columns: Sequence[Tensor]) -> Tensor:
        """What KeyedJaggedTensors have for each value, those of a key of all of them together."""
        count = len(self.keys)
        if self._is_one_hot:
            # `stride`, so that too few weights, or too many, are refused as below
            rows = [c.view(count, k.stride()) for c, k in zip(columns, kjts, strict=True)]
            return torch.cat(rows, 1).view(-1)
        parts = [torch.split(c, k.length_per_key()) for c, k in zip(columns, kjts, strict=True)]
        return torch.cat([part[key] for key in range(count) for part in parts])

    def _find_starts(self) -> Tensor | None:
        """Where each bag begins among the values: int64; None where that is its own number."""
        if self._is_one_hot:
            return None
        lengths = self.lengths.view(-1)
        return torch.cumsum(lengths, 0, dtype=torch.int64) - lengths


def _all_places(starts: Tensor, lengths: Tensor) -> Tensor:
    """Places of all values of bags, from those of the first ones."""
    ends = torch.cumsum(lengths, 0, dtype=torch.int64)
    total = int(ends[-1]) if len(ends) else 0
    places = torch.repeat_interleave(starts - ends + lengths, lengths, output_size=total)
    return places.add_(torch.arange(total))


@dataclass(frozen=True)
class InputPool:
    """All leaves of several batches, each over the inputs of all of them.

    Attributes:
        holed: the form of the batches.
        leaves: for each leaf its place, and a tensor, array or `BagPool` of all inputs, or the
            constant that all batches share.
        input_count: inputs of all batches.
    """

    holed: Any
    leaves: list[tuple[KeyPath, Any]]
    input_count: int

    @classmethod
    def from_batches(
        cls, batches: Sequence[Any], slots: Mapping[KeyPath, SlotMap] | None = None
    ) -> InputPool:
        """Pool the inputs of batches.

        Args:
            batches: of one form; not empty.
            slots: to look the values of the KeyedJaggedTensor at a place up in.

        Raises:
            FAEError: batches differ in form, or a tensor's rows are not inputs.
        """
        apart = [take_apart(batch) for batch in batches]
        columns = [list(column) for column in zip(*(leaves for _, leaves in apart), strict=False)]
        places = [place for place, _ in apart[0][1]]
        for _, leaves in apart:
            others = [place for place, _ in leaves]
            if others != places:
                _refuse(f"batches with {_names(places)}, and with {_names(others)}")
        counts = [_count(leaves) for _, leaves in apart]
        if slots:  # batches as a loader gives them: of packed ones this is known
            _check_lists([leaves for _, leaves in apart], counts)
        pooled = [
            (place, _join(place, [leaf for _, leaf in column], (slots or {}).get(place)))
            for place, column in zip(places, columns, strict=True)
        ]
        return cls(apart[0][0], pooled, sum(counts))


def _count(leaves: list[tuple[KeyPath, Any]]) -> int:
    """Inputs of a batch."""
    counts = {place: count for place, leaf in leaves if (count := input_count(leaf)) is not None}
    if len(set(counts.values())) != 1 or -1 in counts.values():
        rows = ", ".join(f"{count} at {list(place)}" for place, count in list(counts.items())[:6])
        _refuse(f"rows: {rows or 'none'}".replace("-1 at", "a number without rows at"))
    return next(iter(counts.values()))


def _check_lists(batches: list[list[tuple[KeyPath, Any]]], counts: list[int]) -> None:
    """Refuse lists with a value for each input, which would not go where the inputs go."""
    lists = map(_lists_of_inputs, batches, counts)
    for place in sorted(set.intersection(*lists), key=str):
        _refuse(f"a list at {list(place)} that has a value for each input")


def _lists_of_inputs(leaves: list[tuple[KeyPath, Any]], count: int) -> set[KeyPath]:
    """Places of lists of constants that are as long as there are inputs, and not all the same."""
    found: dict[KeyPath, dict[int, list[Any]]] = {}
    for place, leaf in leaves:
        for depth, step in enumerate(place):
            if isinstance(step, int):
                parts = found.setdefault(place[:depth], {})
                parts.setdefault(step, []).append((place[depth + 1 :], leaf))
    return {
        place
        for place, parts in found.items()
        if len(parts) == count
        and all(input_count(leaf) is None for part in parts.values() for _, leaf in part)
        and any(part != next(iter(parts.values())) for part in parts.values())
    }


def _join(place: KeyPath, leaves: list[Any], slots: SlotMap | None) -> Any:
    first = leaves[0]
    if any(type(leaf) is not type(first) for leaf in leaves):
        _refuse(f"{sorted({type(leaf).__name__ for leaf in leaves})} at {list(place)}")
    if isinstance(first, KeyedJaggedTensor):
        _check_keys(place, leaves)
    try:
        if isinstance(first, KeyedJaggedTensor):
            return BagPool(leaves, slots)
        if isinstance(first, Tensor):
            return torch.cat(leaves)
        if isinstance(first, np.ndarray):
            return np.concatenate(leaves)
    except (RuntimeError, ValueError) as error:
        _refuse(f"at {list(place)}: {error}")
    if any(leaf != first for leaf in leaves):
        _refuse(f"{first!r} at {list(place)}, and another value in another batch")
    return first


def _check_keys(place: KeyPath, kjts: list[KeyedJaggedTensor]) -> None:
    for kjt in kjts:
        if kjt.keys() != kjts[0].keys():
            _refuse(f"features {kjts[0].keys()[:5]} and {kjt.keys()[:5]} at {list(place)}")
        if (kjt.weights_or_none() is None) != (kjts[0].weights_or_none() is None):
            _refuse(f"weights in some batches only at {list(place)}")
        if kjt.variable_stride_per_key():
            _refuse(f"a stride for each key (VBE) at {list(place)}")


def _names(places: Sequence[KeyPath]) -> str:
    named = ", ".join(str(list(place)) for place in places[:_NAMED])
    return named + f" and {len(places) - _NAMED} more" * (len(places) > _NAMED)


def _refuse(found: str) -> None:
    raise FAEError("cannot pack batches of a loader", found, _ONE_FORM)
