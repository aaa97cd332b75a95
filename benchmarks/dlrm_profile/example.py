"""The modules of examples/dlrm, which import each other by their bare names."""

from __future__ import annotations

import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "dlrm"
sys.path.insert(0, str(EXAMPLE))

import columns  # noqa: E402
import model  # noqa: E402
import sharded  # noqa: E402
import synthetic  # noqa: E402

__all__ = ["columns", "model", "sharded", "synthetic"]

# How the parts of the model are called on the page, by the name of their module in TorchRec's DLRM.
PARTS = {
    "sparse_arch": "lookups",
    "dense_arch": "bottom MLP",
    "inter_arch": "interaction",
    "over_arch": "top MLP",
}
