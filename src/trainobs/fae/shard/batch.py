"""A batch with its hot lookups apart, on its way through a sharded collection."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


class WholeBatch(NamedTuple):
    """A batch as it came.

    Attributes:
        kjt: its lookups.
        is_hot: bool[values].
    """

    kjt: KeyedJaggedTensor
    is_hot: Tensor


class SplitBatch(NamedTuple):
    """A batch with its hot lookups apart.

    Attributes:
        number: how many batches came before.
        cold: lookups of cold rows, under the keys of the batch.
        hot: lookups of hot rows, as slots.
        pairs: for each key of `hot`, the key of `cold` that it is paired with, as its index.
        is_pure: whether no rank has a cold lookup, so that all leave the tables alone.
        whole: the batch before it was split here; None if the loader split it.
    """

    number: int
    cold: KeyedJaggedTensor
    hot: KeyedJaggedTensor
    pairs: tuple[int, ...]
    is_pure: bool
    whole: WholeBatch | None = None

    @property
    def hot_features(self) -> tuple[str, ...]:
        """Feature of each key of `hot`."""
        keys = self.cold.keys()
        return tuple(keys[pair] for pair in self.pairs)


def lengths_of(kjt: KeyedJaggedTensor) -> Tensor:
    """Lookups of each bag: [keys, inputs]."""
    lengths: Tensor = kjt.lengths()
    return lengths.view(len(kjt.keys()), kjt.stride())
