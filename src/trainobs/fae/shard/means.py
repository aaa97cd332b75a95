"""Mean pooling over lookups of which some are hot and some cold.

TorchRec pools means in two ways. Row-wise shards pool sums, and a callback of the collection
divides by the lengths of the bags; it also divides what other tables pooled, and adds 1e-6. Other
shards pool means in FBGEMM. Half a bag has no mean, so here they all pool sums, and the same
divisions follow, by the lengths of whole bags.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from torch import Tensor
from torchrec.distributed.types import ParameterSharding, ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.fae.kjt.constants import constant
from trainobs.fae.shard.batch import SplitBatch, lengths_of
from trainobs.fae.shard.torchrec_private import StockBags

DIVIDED_BY_COLLECTION = (ShardingType.ROW_WISE.value, ShardingType.TABLE_ROW_WISE.value)
"""Plans under which the collection divides sums; under others FBGEMM pools means."""


class MeanDivision:
    """What the pooled sums of a collection are divided by.

    Args:
        stock: the collection, whose kernels pool sums from here on. Their configs stay as they
            are: by them TorchRec groups tables, and orders the output.
        configs: of its tables.
        plan: by table.
        outputs: feature and table of each embedding, in the order of the collection's output.
    """

    def __init__(
        self,
        stock: StockBags,
        configs: Iterable[EmbeddingBagConfig],
        plan: Mapping[str, ParameterSharding],
        outputs: Sequence[tuple[str, str]],
    ) -> None:
        self._stock = stock
        self._outputs = outputs
        self._tables = frozenset(  # whose means FBGEMM would pool
            config.name
            for config in configs
            if config.pooling is PoolingType.MEAN
            and plan[config.name].sharding_type not in DIVIDED_BY_COLLECTION
        )
        for kernel, _ in stock.kernels():
            kernel.pooling_mode = PoolingMode.SUM

    def divisors(self, batch: SplitBatch) -> tuple[Tensor | None, Tensor | None]:
        """The divisors of a batch, from the lengths of whole bags.

        Returns:
            The stock collection's own, and that of means which FBGEMM would pool: each
            [inputs, columns], or None where there are no such means.
        """
        if not (self._stock.divides_means or self._tables):
            return None, None
        lengths = _whole_bags(lengths_of(batch.cold), lengths_of(batch.hot), batch)
        of_stock = None
        if self._stock.divides_means:
            amounts = lengths
            if batch.cold.weights_or_none() is not None:
                amounts = _whole_bags(_weights_of(batch.cold), _weights_of(batch.hot), batch)
            of_stock = self._stock.mean_divisor(batch.cold.keys(), amounts)
        return of_stock, self._of_kernels(batch.cold.keys(), lengths) if self._tables else None

    def _of_kernels(self, keys: list[str], lengths: Tensor) -> Tensor:
        """1 in the columns of other tables."""
        device = lengths.device
        places = tuple(keys.index(feature) for feature, _ in self._outputs)
        rows = lengths.index_select(0, constant(places, device)).float()
        is_sum = tuple(table not in self._tables for _, table in self._outputs)
        sums = constant(is_sum, device, torch.bool).unsqueeze(1)
        return torch.repeat_interleave(
            rows.clamp(min=1.0).masked_fill(sums, 1.0).T,
            self._stock.output_widths_on_device,
            dim=1,
            output_size=sum(self._stock.output_widths),
        )


def _whole_bags(cold: Tensor, hot: Tensor, batch: SplitBatch) -> Tensor:
    """Add up what a bag has among cold lookups and among hot ones: [keys of `cold`, inputs]."""
    return cold.index_add(0, constant(batch.pairs, cold.device), hot.to(cold.dtype))


def _weights_of(kjt: KeyedJaggedTensor) -> Tensor:
    """Sum of the weights of each bag: float32[keys, inputs]."""
    sums: Tensor = torch.ops.fbgemm.segment_sum_csr(1, kjt.offsets().int(), kjt.weights())
    return sums.view(len(kjt.keys()), -1)
