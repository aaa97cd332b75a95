"""Ties kernel I/O events to PyTorch training steps.

`ObsCallback` observes a Lightning `Trainer`, `ObsTrainerCallback` one of Hugging Face, `observe` a
training loop of one's own. They are imported on first use: `import trainobs` alone brings in
neither torch nor a framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainobs.integrations.huggingface import ObsTrainerCallback
    from trainobs.integrations.lightning import ObsCallback
    from trainobs.integrations.plain import observe

__version__ = "0.1.0"
__all__ = ["ObsCallback", "ObsTrainerCallback", "__version__", "observe"]

_HOME = {
    "ObsCallback": "trainobs.integrations.lightning",
    "ObsTrainerCallback": "trainobs.integrations.huggingface",
    "observe": "trainobs.integrations.plain",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
