"""Inputs that are kept and not counted, to judge hot rows by."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainobs.fae.kjt.inputs import Inputs, blocks_of, joined

KeyedLot = tuple[NDArray[np.int64], NDArray[np.uint64], Inputs]
"""Numbers of inputs in the data, their keys, and themselves."""


class HeldOut:
    """A bounded sample of whole inputs.

    Where there are too many lookups, half of the inputs are dropped, by the leading bits of
    their keys; so what is left depends on which inputs were added, not on their order, and
    parts that were gathered apart merge to the same.

    Args:
        feature_count: features of an input.
        limit: lookups to keep at most.
    """

    def __init__(self, feature_count: int, limit: int) -> None:
        self._feature_count = feature_count
        self.limit = limit
        self._level = 0  # an input stays if so many leading bits of its key are zero
        self._lots: list[KeyedLot] = []
        self._lookup_count = 0

    def add(self, numbers: NDArray[np.int64], keys: NDArray[np.uint64], inputs: Inputs) -> None:
        """Keep inputs, or some of them.

        Args:
            numbers: of the inputs in the data.
            keys: of the inputs.
            inputs: as many.
        """
        lot = (numbers, keys, inputs)
        if self._level:
            lot = self._that_stays(lot)
        self._lots.append(lot)
        self._lookup_count += lot[2].lookup_count
        self._fit()

    def merge(self, other: HeldOut) -> None:
        """Take over what another process kept of other inputs of the same data."""
        self._level = max(self._level, other._level)
        lots, self._lots, self._lookup_count = self._lots + other._lots, [], 0
        for lot in lots:
            self.add(*lot)

    def inputs(self) -> Inputs:
        """What was kept, in the order of the data."""
        return self._gathered()[2]

    def inputs_by_blocks(self) -> Inputs:
        """The same, with where each block of neighbours begins."""
        numbers, _, inputs = self._gathered()
        blocks = np.append(-1, blocks_of(numbers))
        return inputs._replace(begins=np.flatnonzero(np.diff(blocks)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that `restore` needs."""
        numbers, keys, inputs = self._gathered()
        arrays = {"level": np.array([self._level]), "numbers": numbers, "keys": keys}
        for i, ids in enumerate(inputs.ids):
            arrays[f"ids-{i}"] = ids
            arrays[f"lengths-{i}"] = inputs.lookups_of(i)
        return arrays

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Hold what `arrays` told, and nothing else."""
        features = range(self._feature_count)
        lengths = tuple(arrays[f"lengths-{i}"] for i in features)
        inputs = Inputs(
            len(arrays["numbers"]),
            tuple(arrays[f"ids-{i}"] for i in features),
            tuple(None if np.all(each == 1) else each for each in lengths),
        )
        self._level = int(arrays["level"][0])
        self._lots = [(arrays["numbers"], arrays["keys"], inputs)]
        self._lookup_count = inputs.lookup_count

    def _that_stays(self, lot: KeyedLot) -> KeyedLot:
        return _taken(lot, np.flatnonzero(lot[1] >> np.uint64(64 - self._level) == 0))

    def _fit(self) -> None:
        while self._lookup_count > self.limit and self._level < 60:
            self._level += 1
            self._lots = [self._that_stays(self._gathered())]
            self._lookup_count = self._lots[0][2].lookup_count

    def _gathered(self) -> KeyedLot:
        """All in one lot, in the order of the data."""
        if len(self._lots) != 1:
            empty = np.empty(0, dtype=np.int64)
            nothing = Inputs(0, (empty,) * self._feature_count, (None,) * self._feature_count)
            lots = [(empty, empty.astype(np.uint64), nothing), *self._lots]
            numbers, keys, inputs = zip(*lots, strict=True)
            self._lots = [(np.concatenate(numbers), np.concatenate(keys), joined(inputs))]
        numbers = self._lots[0][0]
        if np.any(numbers[1:] < numbers[:-1]):
            self._lots = [_taken(self._lots[0], np.argsort(numbers, kind="stable"))]
        return self._lots[0]


def _taken(lot: KeyedLot, places: NDArray[np.intp]) -> KeyedLot:
    numbers, keys, inputs = lot
    return numbers[places], keys[places], inputs.take(places)
