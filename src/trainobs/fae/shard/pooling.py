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
from torch import Tensor, nn
from torchrec.distributed.types import ParameterSharding, ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.fae.kjt.constants import constant

DIVIDED_BY_COLLECTION = (ShardingType.ROW_WISE.value, ShardingType.TABLE_ROW_WISE.value)
"""Plans under which the collection divides sums; under others FBGEMM pools means."""


def mean_tables(
    configs: Iterable[EmbeddingBagConfig], plan: Mapping[str, ParameterSharding]
) -> frozenset[str]:
    """Tables whose means FBGEMM would pool."""
    return frozenset(
        config.name
        for config in configs
        if config.pooling is PoolingType.MEAN
        and plan[config.name].sharding_type not in DIVIDED_BY_COLLECTION
    )


def pool_sums(lookups: Iterable[nn.Module]) -> None:
    """Have FBGEMM pool sums where it would pool means.

    The configs stay as they are: by them TorchRec groups tables, and orders the output.

    Args:
        lookups: of the sharded collection.
    """
    for lookup in lookups:
        for module in lookup._emb_modules:  # type: ignore[union-attr]
            module.emb_module.pooling_mode = PoolingMode.SUM


def whole_bags(cold: Tensor, hot: Tensor, twins: Sequence[int]) -> Tensor:
    """Add up what a bag has among cold lookups and among hot ones.

    Args:
        cold: [features, inputs].
        hot: [features with a twin, inputs].
        twins: the feature of each row of `hot`.
    """
    index = constant(tuple(twins), cold.device)
    return cold.index_add(0, index, hot.to(cold.dtype))


def lengths_of(kjt: KeyedJaggedTensor) -> Tensor:
    """Lookups of each bag: [features, inputs]."""
    lengths: Tensor = kjt.lengths()
    return lengths.view(len(kjt.keys()), -1)


def weights_of(kjt: KeyedJaggedTensor) -> Tensor:
    """Sum of the weights of each bag: float32[features, inputs]."""
    sums: Tensor = torch.ops.fbgemm.segment_sum_csr(1, kjt.offsets().int(), kjt.weights())
    return sums.view(len(kjt.keys()), -1)
