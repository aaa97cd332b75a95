"""The DLRM of train.py and train_torchrec.py: TorchRec's, as large as DLRM's authors have it.

Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems"
(2019): integers through the bottom MLP, categories through one embedding table each, the dot
products of all pairs of the 27 vectors, and with the bottom MLP's output through the top MLP.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from columns import CATEGORIES, DENSE_COUNT
from torchrec.models.dlrm import DLRM
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

# `bench/dlrm_s_criteo_kaggle.sh` of DLRM: 13-512-256-64-16 and 367-512-256-1.
BOTTOM, TOP = (512, 256, 64), (512, 256, 1)


def build_tables(rows: Sequence[int], dim: int) -> list[EmbeddingBagConfig]:
    """Return a table of ``rows`` x ``dim`` values for each category, of the category's name."""
    return [
        EmbeddingBagConfig(name=name, embedding_dim=dim, num_embeddings=count, feature_names=[name])
        for name, count in zip(CATEGORIES, rows, strict=True)
    ]


def build_dlrm(
    rows: Sequence[int],
    dim: int,
    *,
    bottom: Sequence[int] = BOTTOM,
    top: Sequence[int] = TOP,
    table_device: torch.device | None = None,
) -> DLRM:
    """Return an untrained DLRM: dense ``(N, 13)``, lookups of 26 keys in, logits ``(N, 1)`` out.

    Args:
        rows: rows of each table.
        dim: values in a row; the bottom MLP ends with as many.
        bottom: widths of the bottom MLP's layers before that.
        top: widths of the top MLP's layers.
        table_device: where the tables are made; "meta" for those that will be sharded.
    """
    tables = EmbeddingBagCollection(tables=build_tables(rows, dim), device=table_device)
    return DLRM(
        embedding_bag_collection=tables,
        dense_in_features=DENSE_COUNT,
        dense_arch_layer_sizes=[*bottom, dim],
        over_arch_layer_sizes=list(top),
    )


def use_sparse_gradients(model: DLRM) -> None:
    """Let each table's gradient hold the rows that were looked up, instead of all of its rows."""
    for bag in model.sparse_arch.embedding_bag_collection.embedding_bags.values():
        bag.sparse = True
