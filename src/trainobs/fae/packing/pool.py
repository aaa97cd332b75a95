"""The inputs of several batches, to be taken out in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.core.errors import FAEError
from trainobs.fae.kjt.find import Place
from trainobs.fae.kjt.leaves import input_count, take_apart
from trainobs.fae.kjt.split import Bags, integers

_ONE_FORM = "give a loader whose batches have one form, with one row an input in every tensor"


class BagPool:
    """The bags of several KeyedJaggedTensors with the same keys.

    Args:
        kjts: without strides for each key; not empty.
        slots: of the values of each, if they are to be taken along.
    """

    def __init__(self, kjts: Sequence[KeyedJaggedTensor], slots: Sequence[Tensor] | None) -> None:
        self.keys = list(kjts[0].keys())
        lengths = [integers(kjt.lengths()).view(len(self.keys), kjt.stride()) for kjt in kjts]
        self.lengths = torch.cat(lengths, 1)
        self.values = torch.cat([kjt.values() for kjt in kjts])
        weights = [kjt.weights() for kjt in kjts if kjt.weights_or_none() is not None]
        self.weights = torch.cat(weights) if weights else None
        self.slots = None if slots is None else torch.cat(list(slots))
        self._starts = self._find_starts(lengths)
        self._first_bags = (torch.arange(len(self.keys)) * self.lengths.shape[1])[:, None]
        self._is_one_hot = bool((self.lengths == 1).all())

    def take(self, inputs: Tensor) -> tuple[Bags, Tensor | None]:
        """The bags of some inputs, in their order, and slots of their values if there are any."""
        numbers = (self._first_bags + inputs).view(-1)
        lengths = self.lengths.view(-1).index_select(0, numbers)
        places = self._starts.view(-1).index_select(0, numbers)
        if not self._is_one_hot:
            places = _all_places(places, lengths)
        bags = Bags(
            lengths.view(len(self.keys), -1) if len(inputs) else self.lengths[:, :0],
            self.values.index_select(0, places),
            None if self.weights is None else self.weights.index_select(0, places),
        )
        return bags, None if self.slots is None else self.slots.index_select(0, places)

    @staticmethod
    def _find_starts(lengths: Sequence[Tensor]) -> Tensor:
        """Where each bag begins among the values of all: int64, keys by inputs."""
        starts, end = [], 0
        for counts in lengths:
            ends = torch.cumsum(counts.reshape(-1), 0, dtype=torch.int64)
            starts.append((ends - counts.reshape(-1) + end).view(counts.shape))
            end += int(ends[-1]) if len(ends) else 0
        return torch.cat(starts, 1)


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
    leaves: list[tuple[Place, Any]]
    input_count: int

    @classmethod
    def from_batches(
        cls, batches: Sequence[Any], slots: dict[Place, list[Tensor]] | None = None
    ) -> InputPool:
        """Pool the inputs of batches.

        Args:
            batches: of one form; not empty.
            slots: for the KeyedJaggedTensor at a place the slots of each batch's values.

        Raises:
            FAEError: batches differ in form, or a tensor's rows are not inputs.
        """
        apart = [take_apart(batch) for batch in batches]
        columns = [list(column) for column in zip(*(leaves for _, leaves in apart), strict=False)]
        places = [place for place, _ in apart[0][1]]
        for _, leaves in apart:
            if [place for place, _ in leaves] != places:
                _refuse(f"batches with {_names(places)}, and with {_names(p for p, _ in leaves)}")
        counts = [_count(leaves) for _, leaves in apart]
        pooled = [
            (place, _join(place, [leaf for _, leaf in column], (slots or {}).get(place)))
            for place, column in zip(places, columns, strict=True)
        ]
        return cls(apart[0][0], pooled, sum(counts))


def _count(leaves: list[tuple[Place, Any]]) -> int:
    """Inputs of a batch."""
    counts = {place: count for place, leaf in leaves if (count := input_count(leaf)) is not None}
    if len(set(counts.values())) != 1 or -1 in counts.values():
        rows = ", ".join(f"{count} at {list(place)}" for place, count in list(counts.items())[:6])
        _refuse(f"rows: {rows or 'none'}".replace("-1 at", "a number without rows at"))
    return next(iter(counts.values()))


def _join(place: Place, leaves: list[Any], slots: list[Tensor] | None) -> Any:
    first = leaves[0]
    if any(type(leaf) is not type(first) for leaf in leaves):
        _refuse(f"{sorted({type(leaf).__name__ for leaf in leaves})} at {list(place)}")
    if isinstance(first, KeyedJaggedTensor):
        _check_keys(place, leaves)
        return BagPool(leaves, slots)
    try:
        if isinstance(first, Tensor):
            return torch.cat(leaves)
        if isinstance(first, np.ndarray):
            return np.concatenate(leaves)
    except (RuntimeError, ValueError) as error:
        _refuse(f"at {list(place)}: {error}")
    if any(leaf != first for leaf in leaves):
        _refuse(f"{first!r} at {list(place)}, and another value in another batch")
    return first


def _check_keys(place: Place, kjts: list[KeyedJaggedTensor]) -> None:
    for kjt in kjts:
        if kjt.keys() != kjts[0].keys():
            _refuse(f"features {kjts[0].keys()[:5]} and {kjt.keys()[:5]} at {list(place)}")
        if (kjt.weights_or_none() is None) != (kjts[0].weights_or_none() is None):
            _refuse(f"weights in some batches only at {list(place)}")
        if kjt.variable_stride_per_key():
            _refuse(f"a stride for each key (VBE) at {list(place)}")


def _names(places: Any) -> str:
    return ", ".join(str(list(place)) for place in places)


def _refuse(found: str) -> None:
    raise FAEError("cannot pack batches of a loader", found, _ONE_FORM)
