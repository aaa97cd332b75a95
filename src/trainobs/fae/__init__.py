"""Frequently accessed embeddings: hot rows on the device, whatever holds the table.

`calibrate` finds the rows that are looked up most, `calibrate_dataset` does so in a Ray Data set,
and `FAEProfile` keeps them. `pack` sorts a loader's inputs by them, and the sharders train them.
All are imported on first use: `import trainobs.fae` alone brings in neither torch nor TorchRec.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainobs.fae.calibrate.calibrator import calibrate
    from trainobs.fae.calibrate.ray_job import calibrate_dataset
    from trainobs.fae.pack.data_module import pack_data_module
    from trainobs.fae.pack.loader import PackedLoader, pack
    from trainobs.fae.pack.scheduler import ShuffledOrder, ShuffleScheduler
    from trainobs.fae.profile.profile import FAEProfile, TableProfile
    from trainobs.fae.shard.planner import HotRowReservation
    from trainobs.fae.shard.sharder import (
        FAEEmbeddingBagCollectionSharder,
        FAEEmbeddingCollectionSharder,
    )

__all__ = [
    "FAEEmbeddingBagCollectionSharder",
    "FAEEmbeddingCollectionSharder",
    "FAEProfile",
    "HotRowReservation",
    "PackedLoader",
    "ShuffleScheduler",
    "ShuffledOrder",
    "TableProfile",
    "calibrate",
    "calibrate_dataset",
    "pack",
    "pack_data_module",
]

_HOME = {
    "FAEEmbeddingBagCollectionSharder": "trainobs.fae.shard.sharder",
    "FAEEmbeddingCollectionSharder": "trainobs.fae.shard.sharder",
    "FAEProfile": "trainobs.fae.profile.profile",
    "HotRowReservation": "trainobs.fae.shard.planner",
    "PackedLoader": "trainobs.fae.pack.loader",
    "ShuffleScheduler": "trainobs.fae.pack.scheduler",
    "ShuffledOrder": "trainobs.fae.pack.scheduler",
    "TableProfile": "trainobs.fae.profile.profile",
    "calibrate": "trainobs.fae.calibrate.calibrator",
    "calibrate_dataset": "trainobs.fae.calibrate.ray_job",
    "pack": "trainobs.fae.pack.loader",
    "pack_data_module": "trainobs.fae.pack.data_module",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Face(ModuleType):
    """Keeps `calibrate` and `pack` the functions, when folders of these names are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _HOME or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Face
