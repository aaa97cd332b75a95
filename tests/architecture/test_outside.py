"""What benchmarks, scripts and examples import of trainobs: most of them run in no other test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FILES = sorted(
    file
    for folder in ("benchmarks", "scripts", "examples")
    for file in (ROOT / folder).rglob("*.py")
)


def imported(file: Path) -> Iterator[tuple[str, str]]:
    """Module and name of each import of trainobs, wherever in the file it stands."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "trainobs":
            for alias in node.names:
                yield str(node.module), alias.name


@cache
def names_of(module: str) -> frozenset[str]:
    """What a module binds anywhere, has as a constant string (it may be lazy), or as a module."""
    place = ROOT / "src" / module.replace(".", "/")
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    names = {below.stem for below in place.glob("*")} if place.is_dir() else set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return frozenset(names)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_what_is_imported_of_trainobs_is_there(file):
    assert [pair for pair in imported(file) if pair[1] not in names_of(pair[0])] == []


def test_a_name_that_is_gone_is_found():
    assert "FULL" in names_of("trainobs.session.observer")
    assert "BATCH" not in names_of("trainobs.session.observer")
    assert "observe" in names_of("trainobs")  # which imports it when it is asked for
