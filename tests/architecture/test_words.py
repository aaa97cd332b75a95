"""One word for one idea, and one thing for one name; the words are in docs/design/house.md."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.architecture.rooms import ROOT, SOURCE, modules, room_of

USED_BEFORE = {
    r"[Ll]ook[-_]up|LookUp": "lookup",
    r"(?<![a-z])[Rr]ungs?(?![a-z])": "level",
    r"secede": "detach",
    r"laid.over|lay.over|LaidOver": "overlay",
    r"\bintakes?\b": "buffer",
    r"\btall(y|ies)\b": "totals",
    r"\bpolice\b": "leak check",
    r"\btwins?\b": "pair, or counterpart",
    r"StepBatch": "StepTable",
    r"batch: StepTable": "table",
    r"\bsinks/": "runlog/, tensorboard/",
}
"""Words that stood for the same as others -> the word for it. History may have them."""

HISTORY = {"CHANGELOG.md", "docs/design/decisions.md", "tests/architecture/test_words.py"}
GLOSSARY = re.compile(r"^## Words\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)  # has what it refuses
ROOMS_OF_A_NAME = 2
MAPPED = ("analysis", "report")
"""Folders whose `__init__` says which module is for what."""


def texts() -> Iterator[tuple[str, str]]:
    """Every file of ours that people read."""
    for pattern in ("*.md", "docs/**/*.md", "bpf/*.[ch]", "[!.]*/**/*.py", "tests/guests/*"):
        for path in ROOT.glob(pattern):
            name = str(path.relative_to(ROOT))
            if name not in HISTORY and path.is_file() and not name.startswith((".", "build")):
                yield name, GLOSSARY.sub("", path.read_text())


def old_words(files: Iterable[tuple[str, str]]) -> list[str]:
    """Where an old word stands, and the one to use."""
    return [
        f"{name}:{number}: {match[0]!r}; the word is {new!r}"
        for name, text in files
        for number, line in enumerate(text.splitlines(), 1)
        for old, new in USED_BEFORE.items()
        if (match := re.search(old, line))
    ]


def names_used_twice(source: Path) -> dict[str, list[str]]:
    """Classes of the same name, and modules whose name more than two rooms have."""
    classes, rooms = defaultdict(list), defaultdict(set)
    for module, path in modules(source).items():
        if path.stem not in ("__init__", "__main__"):
            rooms[path.stem].add(room_of(module))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(module)
    twice = {name: where for name, where in classes.items() if len(where) > 1}
    often = {name: sorted(r) for name, r in rooms.items() if len(r) > ROOMS_OF_A_NAME}
    return twice | often


def factories_without_a_name(source: Path) -> list[str]:
    """Class methods that do not say what they make a thing from."""
    return [
        f"{module}.{node.name}"
        for module, path in modules(source).items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name in ("of", "make", "create")
        if any(ast.unparse(decorator) == "classmethod" for decorator in node.decorator_list)
    ]


def missing_in_map(folder: Path) -> list[str]:
    """Modules that the `__init__` of their folder does not name."""
    named = set(re.findall(r"\w+", (folder / "__init__.py").read_text()))
    return sorted({path.stem for path in folder.glob("*.py")} - named - {"__init__"})


def gone_from_folder(folder: Path) -> list[str]:
    """Names in the first column of its map, and in code marks, that are no module or folder."""
    text = (folder / "__init__.py").read_text()
    columns = re.findall(r"^ {4}(\w[\w, ]*?)  ", text, re.MULTILINE)
    named = {*", ".join(columns).split(", "), *re.findall(r"`(\w+)`", text)}
    there = {path.stem for path in (*folder.iterdir(), *folder.parent.iterdir())}
    return sorted(named - there)


def test_a_map_of_a_folder_names_each_of_its_modules():
    for room in MAPPED:
        assert missing_in_map(SOURCE / "trainobs" / room) == []
        assert gone_from_folder(SOURCE / "trainobs" / room) == []


def test_old_words_are_gone():
    found = old_words(texts())
    assert not found, "\n".join(found)


def test_every_name_stands_for_one_thing():
    assert names_used_twice(SOURCE) == {}


def test_factories_say_what_they_make_a_thing_from():
    assert factories_without_a_name(SOURCE) == []


def test_what_is_refused_is_found(tmp_path):
    for path, text in {
        "core/a.py": "class Kind:\n    @classmethod\n    def of(cls):\n        pass",
        "host/a.py": "class Kind:\n    pass",
        "gpu/a.py": "",
    }.items():
        file = tmp_path / "trainobs" / path
        file.parent.mkdir(parents=True)
        file.write_text(text)
    core = tmp_path / "trainobs" / "core"
    (core / "__init__.py").write_text('"""`other`\n\n    third, fourth  alone\n"""')
    assert missing_in_map(core) == ["a"]
    assert gone_from_folder(core) == ["fourth", "other", "third"]
    twice = {"Kind": ["trainobs.core.a", "trainobs.host.a"], "a": ["core", "gpu", "host"]}
    assert names_used_twice(tmp_path) == twice
    assert factories_without_a_name(tmp_path) == ["trainobs.core.a.of"]
    assert len(old_words([("x.py", "a Rung\nladders\nof look-ups")])) == 2
