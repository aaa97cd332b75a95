"""Feature processors, which learn the weight of each place in a bag."""

from __future__ import annotations

from typing import Any

import torch
from torchrec.modules.feature_processor_ import (
    PositionWeightedModule,
    PositionWeightedModuleCollection,
)

MOST_LOOKUPS = 4  # of a bag


def processors(features: list[str], kind: str) -> Any:
    """Processors whose weights tell places apart from the beginning."""
    found: Any
    if kind == "collection":
        found = PositionWeightedModuleCollection(dict.fromkeys(features, MOST_LOOKUPS))
        weights = found.parameters()
    else:
        found = {feature: PositionWeightedModule(MOST_LOOKUPS) for feature in features}
        weights = [processor.position_weight for processor in found.values()]
    with torch.no_grad():
        for weight in weights:
            weight.uniform_(0.5, 2.0)
    return found
