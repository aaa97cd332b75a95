"""The sharder that is tried, and the one that it is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
from torchrec.modules.embedding_configs import DataType

from trainobs.fae import FAEProfile
from trainobs.fae.sharding.sharder import (
    FAEEmbeddingBagCollectionSharder,
    FAEEmbeddingCollectionSharder,
    FAEFeatureProcessedEmbeddingBagCollectionSharder,
)

if TYPE_CHECKING:
    from tests.fae.cases import Case


def fae_sharder(case: Case, profile: FAEProfile) -> Any:
    """The sharder that is tried."""
    settings = _settings(case)
    if case.processed:
        return FAEFeatureProcessedEmbeddingBagCollectionSharder(profile, case.mode, **settings)
    if case.sequences:
        return FAEEmbeddingCollectionSharder(profile, case.mode, **settings)
    return FAEEmbeddingBagCollectionSharder(profile, case.mode, **settings)


def stock_sharder(case: Case) -> Any:
    """The sharder that it is compared with."""
    settings = _settings(case)
    if case.sequences:
        return EmbeddingCollectionSharder(**settings)
    if case.processed:
        return FeatureProcessedEmbeddingBagCollectionSharder(StockSharder(**settings))
    return StockSharder(**settings)


def _settings(case: Case) -> dict[str, Any]:
    """Of both sharders."""
    fused: dict[str, Any] = {}
    if any(case.type_of(table) != DataType.FP32 for table in case.tables):
        fused["stochastic_rounding"] = False  # it would tell two trainings apart
    if case.output_type != DataType.FP32:
        fused["output_dtype"] = case.output_type
    if case.kernel and "uvm" in case.kernel:
        fused["uvm_host_mapped"] = True  # managed memory can hang a device
    if case.max_gradient:
        fused.update(gradient_clipping=True, max_gradient=case.max_gradient)
    if case.bounds:
        fused["bounds_check_mode"] = BoundsCheckMode[case.bounds]
    return {"fused_params": fused} if fused else {}


class StockSharder(EmbeddingBagCollectionSharder):
    """TorchRec's, which hides on hosts what works there."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return super().sharding_types("cuda")
