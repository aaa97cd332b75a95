"""Who may import whom: the table of the rooms, held against every import there is."""

from __future__ import annotations

import graphlib
import re
import sys
from pathlib import Path

import pytest

from tests.architecture.picture import with_picture
from tests.architecture.rooms import PAGE, ROOMS, SOURCE, Room, imports, modules, room_of

ROW = re.compile(r"^\| `(\w+(?:/\w+)?)(?:/|\.py)` \|[^|]*\|([^|]*)\|([^|]*)\|$", re.MULTILINE)


def is_allowed(here: str, imported: str) -> bool:
    """Whether the table lets the room `here` import `imported`."""
    top = imported.split(".")[0]
    if top == "trainobs":
        there = room_of(imported)
        return there in (here, *ROOMS[here].rooms.split())
    return top in sys.stdlib_module_names or top in ROOMS[here].packages.split()


def forbidden_imports(source: Path) -> list[str]:
    """`module: import` for each import that the table does not allow."""
    return [
        f"{name}: {imported}"
        for name, path in modules(source).items()
        for imported in imports(path)
        if not is_allowed(room_of(name), imported)
    ]


def check_for_cycles(source: Path) -> None:
    """Raises `graphlib.CycleError` if a module imports itself through others."""
    known = modules(source)
    graph = {
        name: {imported if imported in known else imported.rpartition(".")[0] for imported in all_}
        for name, all_ in ((name, set(imports(path))) for name, path in known.items())
    }
    graphlib.TopologicalSorter(graph).prepare()


def table_of(page: str) -> dict[str, tuple[set[str], set[str]]]:
    """Rooms and packages that each room may import, as a page's table says."""
    return {
        room: (set(re.findall(r"[\w/]+", rooms)), set(re.findall(r"\w+", packages)))
        for room, rooms, packages in ROW.findall(page)
    }


def test_the_page_has_the_same_table():
    rooms = ROOMS | {"bpf": Room(), "native": Room()}  # in C: they import nothing
    assert table_of(PAGE.read_text()) == {
        name: (set(row.rooms.split()), set(row.packages.split())) for name, row in rooms.items()
    }


def test_the_page_has_the_picture_of_the_imports():
    page = PAGE.read_text()
    assert with_picture(page) == page, "run: python -m tests.architecture.picture"


def test_a_table_is_read_as_it_stands():
    page = (
        "| room | job |\n|---|---|\n"
        "| `gpu/` | NVML, `probes` | core, steps | - |\n"
        "| `cli.py` | `doctor` | - | numpy |\n"
    )
    assert table_of(page) == {"gpu": ({"core", "steps"}, set()), "cli": (set(), {"numpy"})}


def test_every_room_is_in_the_table():
    assert {room_of(name) for name in modules(SOURCE)} <= ROOMS.keys()


def test_every_import_is_allowed():
    found = forbidden_imports(SOURCE)
    assert not found, "\n".join(found)


def test_no_module_imports_itself_through_others():
    check_for_cycles(SOURCE)


def test_the_table_itself_has_no_cycle():
    graphlib.TopologicalSorter({name: row.rooms.split() for name, row in ROOMS.items()}).prepare()


@pytest.fixture
def house(tmp_path):
    """Builds a source tree from {path: text}."""

    def build(files: dict[str, str]) -> Path:
        for name, text in {"__init__.py": "", **files}.items():
            path = tmp_path / "trainobs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return build


@pytest.mark.parametrize(
    ("text", "imported"),
    [
        ("import torch", "torch"),
        ("import torch.nn as nn", "torch.nn"),
        ("from trainobs.session import Session", "trainobs.session.Session"),
        ("from trainobs import session", "trainobs.session"),
        ("from trainobs import ObsCallback", "trainobs.ObsCallback"),
        ("from . import kernel", "..kernel"),
        ("def f():\n    import torch", "torch"),
        ("if TYPE_CHECKING:\n    from torch import Tensor", "torch.Tensor"),
        ("import importlib\nimportlib.import_module('torch.cuda')", "torch.cuda"),
    ],
)
def test_a_forbidden_import_is_found_in_any_guise(house, text, imported):
    source = house({"core/clock.py": f"import os\nimport numpy as np\n{text}\n"})
    assert forbidden_imports(source) == [f"trainobs.core.clock: {imported}"]


def test_a_cycle_is_found(house):
    source = house(
        {
            "core/a.py": "from trainobs.core import b",
            "core/b.py": "from trainobs.core.c import thing",
            "core/c.py": "def f():\n    import trainobs.core.a",
        }
    )
    with pytest.raises(graphlib.CycleError):
        check_for_cycles(source)
