"""Frequently accessed embeddings: hot rows on the device, whatever holds the table.

`calibrate` finds the rows that are looked up most, `calibrate_dataset` does so in a Ray Data set,
and `FAEProfile` keeps them. `pack` sorts a loader's inputs by them, and the sharders train them.
All are imported on first use: `import trainobs.fae` alone brings in neither torch nor TorchRec.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trainobs.core.errors import MissingPackageError

if TYPE_CHECKING:
    from trainobs.fae.calibration.calibrator import calibrate
    from trainobs.fae.calibration.drift import measure, propose_refresh
    from trainobs.fae.calibration.ray_job import calibrate_dataset
    from trainobs.fae.packing.data_module import pack_data_module
    from trainobs.fae.packing.loader import PackedLoader, pack
    from trainobs.fae.packing.scheduler import ShuffledOrder, ShuffleScheduler
    from trainobs.fae.profile.profile import FAEProfile, TableProfile
    from trainobs.fae.sharding.estimator import HotRowEnumerator, planned_profile
    from trainobs.fae.sharding.planner import HotRowReservation
    from trainobs.fae.sharding.sharder import (
        FAEEmbeddingBagCollectionSharder,
        FAEEmbeddingCollectionSharder,
        FAEFeatureProcessedEmbeddingBagCollectionSharder,
    )

__all__ = [
    "FAEEmbeddingBagCollectionSharder",
    "FAEEmbeddingCollectionSharder",
    "FAEFeatureProcessedEmbeddingBagCollectionSharder",
    "FAEProfile",
    "HotRowEnumerator",
    "HotRowReservation",
    "PackedLoader",
    "ShuffleScheduler",
    "ShuffledOrder",
    "TableProfile",
    "calibrate",
    "calibrate_dataset",
    "measure",
    "pack",
    "pack_data_module",
    "planned_profile",
    "propose_refresh",
]

_HOME = {
    "FAEEmbeddingBagCollectionSharder": "trainobs.fae.sharding.sharder",
    "FAEEmbeddingCollectionSharder": "trainobs.fae.sharding.sharder",
    "FAEFeatureProcessedEmbeddingBagCollectionSharder": "trainobs.fae.sharding.sharder",
    "FAEProfile": "trainobs.fae.profile.profile",
    "HotRowEnumerator": "trainobs.fae.sharding.estimator",
    "HotRowReservation": "trainobs.fae.sharding.planner",
    "PackedLoader": "trainobs.fae.packing.loader",
    "ShuffleScheduler": "trainobs.fae.packing.scheduler",
    "ShuffledOrder": "trainobs.fae.packing.scheduler",
    "TableProfile": "trainobs.fae.profile.profile",
    "calibrate": "trainobs.fae.calibration.calibrator",
    "calibrate_dataset": "trainobs.fae.calibration.ray_job",
    "measure": "trainobs.fae.calibration.drift",
    "pack": "trainobs.fae.packing.loader",
    "pack_data_module": "trainobs.fae.packing.data_module",
    "planned_profile": "trainobs.fae.sharding.estimator",
    "propose_refresh": "trainobs.fae.calibration.drift",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = importlib.import_module(_HOME[name])
    except ModuleNotFoundError as error:
        raise MissingPackageError.for_extra(name, "fae", error) from error
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
