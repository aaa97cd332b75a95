"""The rooms of the house, as the table of docs/design/house.md has them, and all modules."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PAGE = ROOT / "docs" / "design" / "house.md"


class Room(NamedTuple):
    """What a room may import, besides itself and the standard library."""

    rooms: str = ""
    packages: str = ""


# A file beside the rooms (cli.py) is a room of its own; __init__ is the public face.
ROOMS = {
    "core": Room("", "numpy"),
    "probes": Room("core", "numpy"),
    "host": Room("core", "numpy"),
    "gpu": Room("core", "pynvml"),
    "steps": Room("core", "numpy"),
    "verdict": Room("core", "numpy"),
    "access": Room("core", "numpy"),
    "sinks": Room("core access verdict", "numpy PIL google_crc32c pyarrow tensorboard"),
    "session": Room("core access probes host gpu steps sinks", "numpy"),
    "service": Room("core probes"),
    "hooks": Room("core steps session", "numpy torch"),
    "embeddings": Room("core access steps", "numpy torch torchrec fbgemm_gpu"),
    "integrations": Room(
        "core session sinks hooks embeddings steps",
        "lightning pytorch_lightning tensorboard torch transformers",
    ),
    "analysis": Room("core access verdict", "numpy pyarrow"),
    "fae": Room("core access", "numpy ray torch torchrec fbgemm_gpu tqdm"),
    "cli": Room("core probes gpu analysis"),
    "__init__": Room("access integrations"),
    "__main__": Room("cli"),
}


def modules(source: Path) -> dict[str, Path]:
    """Module name -> file."""
    names = {
        path: ".".join(path.relative_to(source).with_suffix("").parts)
        for path in sorted(source.rglob("*.py"))
    }
    return {name.removesuffix(".__init__"): path for path, name in names.items()}
