"""TorchRec's helpers for tests of sharding, as its wheel ships them."""

from __future__ import annotations

import sys
import types
import warnings

# The wheel leaves out a module that these import, for a test of 2D sharding that is not run here.
_LEFT_OUT = "torchrec.distributed.tests.test_sequence_model"
for name in (_LEFT_OUT.rpartition(".")[0], _LEFT_OUT):
    sys.modules.setdefault(name, types.ModuleType(name))
sys.modules[_LEFT_OUT].TestEmbeddingCollectionSharder = None  # type: ignore[attr-defined]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchrec.distributed.test_utils.test_model import TestSparseNN as SparseNN
    from torchrec.distributed.test_utils.test_model_parallel import ModelParallelTestShared
    from torchrec.distributed.test_utils.test_sharding import (
        sharding_single_rank_test_single_process,
    )

__all__ = ["ModelParallelTestShared", "SparseNN", "sharding_single_rank_test_single_process"]
