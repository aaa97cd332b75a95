"""What the stages of one forward pass share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchrec.streamable import Multistreamable

from trainobs.fae.sharding.batch import Process
from trainobs.fae.sharding.order import FeatureSequence


class FAEContext(Multistreamable):  # type: ignore[misc]  # TorchRec has no types
    """What the stages of one forward pass share."""

    def __init__(self, stock: Any) -> None:
        self.stock = stock  # the same of the stock collection
        self.batch_number = 0  # how many batches came before
        self.input_count = 0
        self.generation = 0  # of the overlay's hot rows
        self.is_pure = False  # whether the tables are left alone
        self.is_whole = False  # whether hot lookups are sent with the others
        self.hot: list[Any] = []  # hot lookups of each kernel
        self.lengths: Tensor | None = None  # [inputs, columns] to divide by, of FBGEMM's means
        self.process: Process | None = None  # of a feature processor over the collection
        self.sequences: Sequence[FeatureSequence] = ()  # of each output, unless by the tables

    @property
    def sharding_contexts(self) -> list[Any]:
        """What a pipeline that sends the lookups of many collections at once writes to."""
        contexts: list[Any] = self.stock.sharding_contexts
        return contexts

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the memory until the stream is done with it."""
        lengths = () if self.lengths is None else (self.lengths,)
        for part in (self.stock, *self.hot, *lengths, *self.sequences):
            part.record_stream(stream)
