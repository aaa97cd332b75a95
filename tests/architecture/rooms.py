"""The rooms of the house: the table of docs/design/house.md, and the modules there are."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[2] / "src"


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
    "sinks": Room("core verdict", "numpy pyarrow tensorboard"),
    "session": Room("core probes host gpu steps sinks", "numpy"),
    "service": Room("core probes"),
    "hooks": Room("core steps session", "numpy torch"),
    "integrations": Room(
        "core session sinks hooks steps",
        "lightning pytorch_lightning tensorboard torch transformers",
    ),
    "analysis": Room("core verdict", "numpy pyarrow"),
    "cli": Room("core probes gpu analysis"),
    "__init__": Room("integrations"),
    "__main__": Room("cli"),
}


def modules(source: Path) -> dict[str, Path]:
    """Module name -> file."""
    names = {
        path: ".".join(path.relative_to(source).with_suffix("").parts)
        for path in sorted(source.rglob("*.py"))
    }
    return {name.removesuffix(".__init__"): path for path, name in names.items()}
