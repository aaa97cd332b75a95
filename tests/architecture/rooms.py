"""The rooms of the house, as the table of docs/design/house.md has them, and all modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PAGE = ROOT / "docs" / "design" / "house.md"


class Room(NamedTuple):
    """What a room may import, besides itself and the standard library."""

    rooms: str = ""
    packages: str = ""


# A file beside the rooms (cli.py) is a room of its own; __init__ is the public face, and so is that
# of fae/, whose folders are rooms.
ROOMS = {
    "core": Room("", "numpy"),
    "probes": Room("core", "bcc numpy"),
    "service": Room("core probes"),
    "host": Room("core", "numpy"),
    "gpu": Room("core", "pynvml"),
    "steps": Room("core", "numpy"),
    "access": Room("core", "numpy"),
    "runlog": Room("core access", "numpy pyarrow"),
    "replay": Room("core", "numpy"),
    "verdict": Room("core replay", "numpy"),
    "tensorboard": Room("core access verdict", "numpy PIL google_crc32c tensorboard"),
    "analysis": Room("core access runlog replay verdict", "numpy"),
    "report": Room("core analysis"),
    "session": Room("core access probes host gpu steps runlog tensorboard verdict", "numpy"),
    "attach": Room("core probes host steps runlog session tensorboard", "numpy"),
    "hooks": Room("core steps session", "numpy torch"),
    "embeddings": Room("core access steps", "numpy torch torchrec fbgemm_gpu"),
    "integrations": Room(
        "core report session tensorboard hooks embeddings steps",
        "lightning pytorch_lightning torch transformers",
    ),
    "fae/profile": Room("core", "numpy torch torchrec fbgemm_gpu"),
    "fae/kjt": Room("core fae/profile", "numpy torch torchrec"),
    "fae/calibration": Room("core access fae/profile fae/kjt", "numpy ray torch torchrec tqdm"),
    "fae/packing": Room("core fae/profile fae/kjt", "numpy torch torchrec"),
    "fae/sharding": Room("core fae/profile fae/kjt", "numpy torch torchrec fbgemm_gpu"),
    "fae": Room("core fae/profile fae/calibration fae/packing fae/sharding"),
    "cli": Room("core probes gpu runlog analysis report attach"),
    "__init__": Room("core access probes report integrations"),
    "__main__": Room("cli"),
}


def modules(source: Path) -> dict[str, Path]:
    """Module name -> file."""
    names = {
        path: ".".join(path.relative_to(source).with_suffix("").parts)
        for path in sorted(source.rglob("*.py"))
    }
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def imports(path: Path) -> Iterator[str]:
    """What a file imports, inside functions and for type checkers too; `from a import b` is a.b."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                yield from (f"{'.' * level}{module or ''}.{alias.name}" for alias in names)
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                if ast.unparse(function).split(".")[-1] in ("import_module", "__import__"):
                    yield name


def room_of(name: str) -> str:
    """`trainobs.core.abi` -> `core`; a folder in fae/ is a room, too: `fae/packing`."""
    _, room, inner, *_ = [*name.split("."), "__init__", ""]
    return f"{room}/{inner}" if f"{room}/{inner}" in ROOMS else room
