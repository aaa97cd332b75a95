"""A random order of numbers that takes no memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainobs.fae.kjt.inputs import keys_of

_ROUNDS = 4


class Permutation:
    """Puts the numbers below `count` into a pseudo-random order, which any part can be asked of.

    A Feistel network over the next even power of two, walked until it ends below `count` (Black and
    Rogaway, Ciphers with arbitrary finite domains, CT-RSA 2002).

    Args:
        count: of numbers; 1 or more.
        seed: another seed, another order.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._half = np.uint64(max(1, (int(count - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._seed = seed

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers at some positions of the order."""
        numbers = self._mix(positions.astype(np.uint64))
        while np.any(outside := numbers >= self._count):
            numbers[outside] = self._mix(numbers[outside])
        return numbers.astype(np.int64)

    def _mix(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = numbers >> self._half, numbers & self._mask
        for turn in range(_ROUNDS):
            noise = keys_of(right.astype(np.int64), self._seed + (turn << 32)) & self._mask
            left, right = right, left ^ noise
        return np.asarray((left << self._half) | right)
