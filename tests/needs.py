"""What tests need of torch that the oldest version which trainobs supports does not have."""

from __future__ import annotations

import pytest
import torch


def needs_torch(version: str, what: str) -> pytest.MarkDecorator:
    """Skipped where torch is older than the version that brought `what`."""
    is_older = torch.torch_version.TorchVersion(torch.__version__) < version
    return pytest.mark.skipif(is_older, reason=f"needs torch {version}: {what}")


any_order = needs_torch("2.6", "loaders in any order")
recorder = needs_torch("2.8", "its record of gloo's collectives")
store_clone = needs_torch("2.8", "stores that can be cloned")
