"""The walks of docs/design/walk.md lead through code that exists, and enter each room once."""

from __future__ import annotations

import re
from itertools import groupby

from tests.architecture.rooms import ROOT, room_of

PAGE = ROOT / "docs" / "design" / "walk.md"
STOP = re.compile(r"^\| `([^`]+)` \| ((?:`\w+`(?:, )?)+) \|", re.MULTILINE)


def walks(page: str) -> dict[str, list[tuple[str, list[str]]]]:
    """Title -> stops: file, and names in it."""
    return {
        title: [(file, re.findall(r"`(\w+)`", names)) for file, names in STOP.findall(text)]
        for title, text in re.findall(r"^## (.+)\n((?:(?!^## ).*\n?)*)", page, re.MULTILINE)
    }


def rooms_entered(files: list[str]) -> list[str]:
    """Rooms in the order of the walk; a room twice if the walk comes back to it."""
    modules = (file.removeprefix("src/").removesuffix(".py").replace("/", ".") for file in files)
    rooms = [room_of(name) if name.startswith("trainobs.") else "bpf" for name in modules]
    return [room for room, _ in groupby(rooms)]


def test_every_stop_exists():
    found = walks(PAGE.read_text())
    assert [len(stops) > 8 for stops in found.values()] == [True] * 3
    missing = [
        f"{file}: {name}"
        for stops in found.values()
        for file, names in stops
        for name in names
        if not re.search(rf"\b{name}\b", (ROOT / file).read_text())
    ]
    assert missing == []


def test_no_walk_comes_back_to_a_room():
    for title, stops in walks(PAGE.read_text()).items():
        rooms = rooms_entered([file for file, _ in stops])
        assert len(rooms) == len(set(rooms)), f"{title}: {' -> '.join(rooms)}"


def test_coming_back_is_seen():
    files = ["bpf/maps.h", "src/trainobs/steps/clock.py", "src/trainobs/steps/a.py", "bpf/x.h"]
    assert rooms_entered(files) == ["bpf", "steps", "bpf"]
