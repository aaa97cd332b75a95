"""Ties kernel I/O events to PyTorch training steps.

`ObsCallback` observes a Lightning `Trainer`, `ObsTrainerCallback` one of Hugging Face, `observe` a
training loop of one's own; `phase` marks a part of a step under each. `load_run` reads what they
recorded, `AccessCounts` is what they tell about the rows of embedding tables. `Probe` and
`BccProbe` are programs of one's own. `Observation` is what `observe` returns, `TrainobsError` the
base of all errors. All are imported on first use: `import trainobs` alone brings in neither torch
nor a framework.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from trainobs.core.errors import MissingPackageError, TrainobsError
from trainobs.core.version import __version__

if TYPE_CHECKING:
    from trainobs.access import AccessCounts
    from trainobs.integrations.huggingface import ObsTrainerCallback
    from trainobs.integrations.lightning import ObsCallback
    from trainobs.integrations.phase_scopes import phase
    from trainobs.integrations.plain import Observation, observe
    from trainobs.probes.bcc_probe import BccProbe
    from trainobs.probes.own_probe import Probe
    from trainobs.report.notebook import load_run

    __all__ = [
        "AccessCounts",
        "BccProbe",
        "ObsCallback",
        "ObsTrainerCallback",
        "Observation",
        "Probe",
        "TrainobsError",
        "__version__",
        "load_run",
        "observe",
        "phase",
    ]

_HOME = {
    "AccessCounts": "trainobs.access",
    "BccProbe": "trainobs.probes.bcc_probe",
    "ObsCallback": "trainobs.integrations.lightning",
    "ObsTrainerCallback": "trainobs.integrations.huggingface",
    "Observation": "trainobs.integrations.plain",
    "Probe": "trainobs.probes.own_probe",
    "load_run": "trainobs.report.notebook",
    "observe": "trainobs.integrations.plain",
    "phase": "trainobs.integrations.phase_scopes",
}

_EXTRAS = {
    "ObsCallback": "lightning",
    "ObsTrainerCallback": "huggingface",
    "Observation": "torch",
    "observe": "torch",
}
"""Name -> the extra that brings what it takes."""

_NEEDS = {
    "ObsCallback": ("lightning", "pytorch_lightning"),
    "ObsTrainerCallback": ("transformers",),
    "Observation": ("torch",),
    "observe": ("torch",),
}
"""Name -> packages, one of which it takes; what is not in here takes none."""


def __getattr__(name: str) -> Any:
    if name == "__all__":  # looked up when it is asked for, by `from trainobs import *`
        return sorted(["TrainobsError", "__version__", *filter(_is_usable, _HOME)])
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = importlib.import_module(_HOME[name])
    except ModuleNotFoundError as error:
        if name not in _EXTRAS:
            raise
        raise MissingPackageError.for_extra(name, _EXTRAS[name], error) from error
    found = globals()[name] = getattr(home, name)  # the next time, nobody asks here
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), "__all__", *__getattr__("__all__")})


def _is_usable(name: str) -> bool:
    return name not in _NEEDS or any(map(_is_there, _NEEDS[name]))


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # imported, by somebody who made it by hand
        return True
