"""What the study takes from the example, which lies one folder up."""

from __future__ import annotations

import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[1]
if str(EXAMPLE) not in sys.path:
    sys.path.append(str(EXAMPLE))

from data import find_data  # noqa: E402
from options import EPOCH, NEVER, Options, check_checkpoints, stop  # noqa: E402
from pack import SPLITS, Images, pack  # noqa: E402
from packed import FORMATS as PACKED  # noqa: E402

FILES = "files"
FORMATS = (FILES, *PACKED)

__all__ = [
    "EPOCH",
    "EXAMPLE",
    "FILES",
    "FORMATS",
    "NEVER",
    "SPLITS",
    "Images",
    "Options",
    "check_checkpoints",
    "find_data",
    "pack",
    "stop",
]
