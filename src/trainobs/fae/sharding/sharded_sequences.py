"""TorchRec's sharded EmbeddingCollection with its hot rows on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.types import LazyAwaitable, LazyNoWait
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from trainobs.core.errors import FAEError
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.batch import FAEContext, SlotRows, SplitBatch
from trainobs.fae.sharding.order import check_order, sequences
from trainobs.fae.sharding.sharded import ShardedFAEModule


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

    def _expanded(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        raise FAEError(
            "cannot look up the sequences of a batch",
            "a stride for each key (VBE)",
            "give each input sequences of its own, or use the stock sharder",
        )

    def _check(self, features: KeyedJaggedTensor) -> None:
        check_order(features)

    def _prepare(self, ctx: FAEContext, batch: SplitBatch) -> None:
        """Find the place of each lookup, unless all were sent in order."""
        if not ctx.is_whole:
            written = self._written if batch.cold.values().dtype == torch.int64 else {}
            outputs = [(feature, written.get(table, 0)) for feature, table in self._outputs]
            ctx.sequences = sequences(batch, outputs, self._ids)

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
            return self._lookup_sent(ctx, input)
        hot = self._by_plan(hot)
        outputs = list(zip(self._stock.output_names, ctx.sequences, hot, strict=True))
        if ctx.is_pure:
            return LazyNoWait({name: s.jagged(found) for name, s, found in outputs})
        awaitable = self._lookup_sent(ctx, input)
        awaitable.callbacks.append(
            lambda cold: {
                name: s.jagged(s.merged(cold[name].values(), found)) for name, s, found in outputs
            }
        )
        return awaitable

    @property
    def _written(self) -> dict[str, int]:
        """Rows of tables for which FBGEMM writes 0 over bad ids in the batch, if of 64 bits.

        It does on one rank, where TorchRec gives it no copy.
        """
        if self._overlay.group is not None:
            return {}
        plan = self.module_sharding_plan
        whole = [c for c in self._configs if plan[c.name].sharding_type != "row_wise"]
        return {config.name: config.num_embeddings for config in whole}

    def _by_plan(self, hot: list[Tensor]) -> list[Tensor]:
        """The same embeddings; of tables under one kind of plan, all have a gradient or none."""
        kinds = [self.module_sharding_plan[table].sharding_type for _, table in self._outputs]
        found = list(hot)
        for kind in set(kinds):
            places = [place for place, other in enumerate(kinds) if other == kind]
            parts = _OnePlan.apply(*(hot[place] for place in places))  # type: ignore[no-untyped-call]
            for place, part in zip(places, parts, strict=True):
                found[place] = part
        return found

    def _watched(self, found: dict[str, JaggedTensor]) -> dict[str, JaggedTensor]:
        """The embeddings of a batch that the tables served."""
        for sequence in found.values():
            self._overlay.watch(sequence.values(), by_tables=True)
        return found


class _OnePlan(torch.autograd.Function):
    """Embeddings that TorchRec would exchange at once.

    If some are in a loss, the others have a gradient of zeros, on which Adam trains their rows.
    """

    @staticmethod
    def forward(ctx: Any, *embeddings: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.view_as(part) for part in embeddings)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients
