"""Inputs that are kept and not counted, to judge hot rows by."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainobs.fae.kjt.inputs import Inputs, joined


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
        self._limit = limit
        self._level = 0  # an input stays if so many leading bits of its key are zero
        self._lots: list[tuple[NDArray[np.int64], NDArray[np.uint64], Inputs]] = []
        self._lookup_count = 0

    @property
    def count(self) -> int:
        """Inputs kept."""
        return sum(inputs.size for _, _, inputs in self._lots)

    def add(self, numbers: NDArray[np.int64], keys: NDArray[np.uint64], inputs: Inputs) -> None:
        """Keep inputs, or some of them.

        Args:
            numbers: of the inputs in the data.
            keys: of the inputs.
            inputs: as many.
        """
        if self._level:
            stays = self._stays(keys)
            numbers, keys, inputs = numbers[stays], keys[stays], inputs.take(stays)
        self._lots.append((numbers, keys, inputs))
        self._lookup_count += inputs.lookup_count
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

    def _stays(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return np.asarray(keys >> np.uint64(64 - self._level) == 0)

    def _fit(self) -> None:
        while self._lookup_count > self._limit and self._level < 60:
            self._level += 1
            numbers, keys, inputs = self._gathered()
            stays = self._stays(keys)
            inputs = inputs.take(stays)
            self._lots = [(numbers[stays], keys[stays], inputs)]
            self._lookup_count = inputs.lookup_count

    def _gathered(self) -> tuple[NDArray[np.int64], NDArray[np.uint64], Inputs]:
        """All in one lot, in the order of the data."""
        if len(self._lots) != 1:
            empty = np.empty(0, dtype=np.int64)
            nothing = Inputs(0, (empty,) * self._feature_count, (None,) * self._feature_count)
            lots = [(empty, empty.astype(np.uint64), nothing), *self._lots]
            numbers = np.concatenate([numbers for numbers, _, _ in lots])
            keys = np.concatenate([keys for _, keys, _ in lots])
            inputs = joined([inputs for _, _, inputs in lots])
            self._lots = [(numbers, keys, inputs)]
        numbers, keys, inputs = self._lots[0]
        if np.any(numbers[1:] < numbers[:-1]):
            order = np.argsort(numbers, kind="stable")
            self._lots = [(numbers[order], keys[order], reordered(inputs, order))]
        return self._lots[0]


def reordered(inputs: Inputs, order: NDArray[np.int64]) -> Inputs:
    """The same inputs in another order."""
    ids, lengths = [], []
    for i, feature_ids in enumerate(inputs.ids):
        each = inputs.lookups_of(i)
        starts = np.cumsum(each) - each
        new = each[order]
        # Position of each lookup: the old start of its input, and how far it is into it.
        into = np.arange(len(feature_ids)) - np.repeat(np.cumsum(new) - new, new)
        ids.append(feature_ids[np.repeat(starts[order], new) + into])
        lengths.append(None if inputs.lengths[i] is None else new)
    return Inputs(inputs.size, tuple(ids), tuple(lengths))
