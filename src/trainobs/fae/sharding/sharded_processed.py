"""TorchRec's sharded FeatureProcessedEmbeddingBagCollection with its hot rows on the device.

A feature processor learns the weight of each place in a bag. TorchRec has it on the ranks that have
the rows, and hot lookups have it where they are served. Either part of a bag lacks places of the
other, so they are noted in the weights of the batch before, as TorchRec does for row-wise plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.types import Awaitable, LazyAwaitable
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from trainobs.core.errors import FAEError, a_type
from trainobs.fae.kjt.split import read_mark
from trainobs.fae.sharding.batch import FAEContext
from trainobs.fae.sharding.order import check_order
from trainobs.fae.sharding.torchrec_private import StockProcessed


class ShardedFAEFeatureProcessedEmbeddingBagCollection(StockProcessed):
    """Keeps hot rows over the tables of a sharded FeatureProcessedEmbeddingBagCollection.

    It is TorchRec's, over a `ShardedFAEEmbeddingBagCollection` that gives hot lookups their weights
    too. A mixed batch comes whole, also from `pack`.

    Args:
        module: to shard.
        *arguments: those of the stock module, with a sharder of ours for its tables.
        **settings: more of these.

    Raises:
        FAEError: the collection, under its processors, is one with which hot rows could not be
            exact.
    """

    def __init__(self, module: Any, *arguments: Any, **settings: Any) -> None:
        _, collection = module.split()
        if any(c.pooling is PoolingType.MEAN for c in collection.embedding_bag_configs()):
            raise FAEError(
                _CANNOT,
                "means, which TorchRec divides by the places of lookups and not by their weights",
                "pool sums, or use the stock sharder",
            )
        super().__init__(module, *arguments, **settings)
        for processor in self.processors:
            if not hasattr(processor, "pre_process_input"):
                raise FAEError(
                    _CANNOT,
                    f"{a_type(processor)}, which must see whole bags: it has no "
                    "pre_process_input, which TorchRec's row-wise plans need as well",
                    "give it that method, or use the stock sharder",
                )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *batch: Any, **settings: Any) -> LazyAwaitable[KeyedTensor]:
        """Look a batch up; see `ShardedFAEModule.forward`."""
        return super().forward(*batch, **settings)

    def input_dist(
        self, ctx: FAEContext, features: KeyedJaggedTensor
    ) -> Awaitable[Awaitable[KJTList]]:
        """Note the places of lookups in their bags, and send cold ones to where their rows are.

        Args:
            ctx: of this forward pass.
            features: a batch: whole, or packed and pure.

        Raises:
            FAEError: a mixed batch came apart, and what else the collection refuses.
        """
        check_order(features, "the bags of a feature processor")
        return self.collection.input_dist(ctx, self._with_places(features))

    def compute_and_output_dist(
        self, ctx: FAEContext, input: KJTList
    ) -> LazyAwaitable[KeyedTensor]:
        """Give all lookups their weights, and look them up.

        Args:
            ctx: of this forward pass.
            input: cold lookups of all ranks in the rows that this one has.
        """
        # The processors' part in the graph is made first, so that the backward comes to it last and
        # no rank exchanges their gradients before those of the lookups.
        part = _Callbacks()
        self.add_fp_params_grad_sync_callback(part)
        ctx.process = self.apply_feature_processors_to_kjt_list
        awaitable = self.collection.compute_and_output_dist(ctx, ctx.process(input))
        awaitable.callbacks.extend(part.callbacks)
        return awaitable

    def prefetch(
        self, dist_input: KJTList, forward_stream: Any = None, ctx: FAEContext | None = None
    ) -> None:
        """Have the caches of the tables read the rows of cold lookups."""
        self.collection.prefetch(dist_input, forward_stream, ctx)

    def _with_places(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """The same lookups, with places in the place of any weights."""
        places = torch.zeros_like(features.values(), dtype=torch.float32)
        noted = _rebuilt(features, features.keys(), places)
        mark = read_mark(features)
        if mark is None:
            self.note_places(noted)
            return noted
        cold, hot = noted.split([len(mark.features), len(mark.hot_features)])
        self.note_places(cold)  # to parts of `places`
        self.note_places(_rebuilt(hot, mark.hot_features, hot.weights()))
        return noted


class _Callbacks:
    """What TorchRec wants of an awaitable."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []


def _rebuilt(kjt: KeyedJaggedTensor, keys: Sequence[str], weights: Tensor) -> KeyedJaggedTensor:
    """The same lookups under other keys, with other weights."""
    varies = kjt.variable_stride_per_key()
    return KeyedJaggedTensor(
        keys=list(keys),
        values=kjt.values(),
        weights=weights,
        lengths=kjt.lengths(),
        stride=None if varies else kjt.stride(),
        stride_per_key_per_rank=kjt.stride_per_key_per_rank() if varies else None,
        length_per_key=kjt.length_per_key(),
        inverse_indices=kjt.inverse_indices_or_none(),
    )


_CANNOT = "cannot shard a feature-processed collection with hot rows"
