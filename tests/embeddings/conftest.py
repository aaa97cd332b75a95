"""Imports torchrec once, with the warnings that FBGEMM gives for what its build lacks."""

from __future__ import annotations

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torchrec.distributed.model_parallel
    import torchrec.distributed.train_pipeline  # noqa: F401


@pytest.fixture(autouse=True)
def seeded():
    """Every test sees the same numbers."""
    import torch

    torch.manual_seed(20261121)
