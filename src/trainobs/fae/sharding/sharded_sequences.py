"""TorchRec's sharded EmbeddingCollection with its hot rows on the device."""

from __future__ import annotations

import torch
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.types import Awaitable, LazyAwaitable, LazyNoWait
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor
from torchrec.sparse.tensor_dict import maybe_td_to_kjt

from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.batch import SlotRows
from trainobs.fae.sharding.order import check_order, sequences
from trainobs.fae.sharding.sharded import FAEContext, ShardedFAEModule


class ShardedFAEEmbeddingCollection(ShardedFAEModule):
    """Keeps hot rows over the tables of a sharded EmbeddingCollection.

    Each lookup has an embedding of its own, in the order of the batch. A mixed batch therefore
    comes whole, also from `pack`, and is split here, which on a GPU waits for the device. All else
    is as in `ShardedFAEEmbeddingBagCollection`.
    """

    _pools = False
    _ids: SlotRows | None = None

    def _use(self, profile: FAEProfile) -> None:
        super()._use(profile)
        if self._stock.needs_rows:
            self._ids = SlotRows.from_profile(profile, self._device)

    def input_dist(
        self, ctx: FAEContext, features: KeyedJaggedTensor
    ) -> Awaitable[Awaitable[KJTList]]:
        """Send cold lookups to where their rows are; a pure batch has none, and sends nothing.

        Args:
            ctx: of this forward pass.
            features: a batch, packed or not.

        Raises:
            FAEError: the batch was packed for other hot rows, lacks a feature or the order of its
                lookups, or ranks have batches of different kinds.
        """
        features = maybe_td_to_kjt(features, self._features)
        check_order(features)
        batch = self._split(ctx, features)
        if self._mode != "paper" or ctx.is_pure:
            with torch.no_grad():
                names = [feature for feature, _ in self._outputs]
                ctx.sequences = sequences(batch, names, self._ids)
        return self._send_cold(ctx, batch)

    def compute_and_output_dist(
        self, ctx: FAEContext, input: KJTList
    ) -> LazyAwaitable[dict[str, JaggedTensor]]:
        """Look up cold rows where they are and hot ones here, and put them in order.

        Args:
            ctx: of this forward pass.
            input: cold lookups of all ranks in the rows that this one has.
        """
        hot = self._lookup_hot(ctx)
        if hot is None:
            awaitable = self._stock.module.compute_and_output_dist(ctx.stock, input)
            awaitable.callbacks.append(self._watched)
            return awaitable
        by_name = dict(zip(self._stock.output_names, ctx.sequences, strict=True))
        if ctx.is_pure:
            return LazyNoWait({name: s.jagged(hot[s.hot]) for name, s in by_name.items()})
        awaitable = self._stock.module.compute_and_output_dist(ctx.stock, input)
        awaitable.callbacks.append(
            lambda cold: {
                name: s.jagged(s.merged(cold[name].values(), hot)) for name, s in by_name.items()
            }
        )
        return awaitable

    def _watched(self, found: dict[str, JaggedTensor]) -> dict[str, JaggedTensor]:
        """The embeddings of a batch that the tables served."""
        for sequence in found.values():
            self._overlay.watch(sequence.values(), by_tables=True)
        return found
