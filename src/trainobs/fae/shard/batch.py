"""A batch, hot lookups apart, on its way through a sharded collection."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.fae.shard.write_back import WriteBack


class WholeBatch(NamedTuple):
    """A batch as it came.

    Attributes:
        kjt: its lookups.
        is_hot: bool, of each value.
    """

    kjt: KeyedJaggedTensor
    is_hot: Tensor


class SplitBatch(NamedTuple):
    """A batch, hot lookups apart.

    Attributes:
        number: how many batches came before.
        cold: lookups of cold rows, under the keys that the batch came with.
        hot: lookups of hot rows, as slots.
        twins: feature of `cold` that each key of `hot` belongs to.
        is_pure: whether no rank has a cold lookup, so that all leave the tables alone.
        whole: the batch before; None if it came apart.
    """

    number: int
    cold: KeyedJaggedTensor
    hot: KeyedJaggedTensor
    twins: tuple[int, ...]
    is_pure: bool
    whole: WholeBatch | None = None

    @property
    def hot_features(self) -> tuple[str, ...]:
        """Features of the hot lookups, in their order."""
        keys = self.cold.keys()
        return tuple(keys[twin] for twin in self.twins)


class HotRowStore(Protocol):
    """The hot rows of a collection, wherever the ranks keep them."""

    write_back: WriteBack

    def gather(self, batch: SplitBatch) -> list[Any]:
        """The hot lookups of a batch, each part with a `record_stream`."""

    def lookup(self, lookups: list[Any], batch_number: int, input_count: int) -> Tensor:
        """The embeddings, in the collection's output order; the backward trains the hot rows.

        float32[inputs, columns] of bags: the sums over the hot lookups of each. float32[lookups,
        columns] of sequences: output behind output.
        """
