"""Limits of size; docstrings, names and types are left to ruff and mypy (`make check`)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES = 400
ALONE = {"benchmarks/fae_gpu.py": 640}  # carried to machines that have nothing beside it
FUNCTION_LINES = 80

PYTHON = [
    path
    for folder in ("src", "bpf", "tests", "benchmarks", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
C = sorted((ROOT / "bpf").glob("*.[ch]"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PYTHON + C, ids=relative)
def test_a_file_is_short_enough_to_read_at_once(path):
    lines = path.read_text().count("\n")
    assert lines <= ALONE.get(relative(path), FILE_LINES)


@pytest.mark.parametrize("path", PYTHON, ids=relative)
def test_a_function_is_short_enough_to_see_at_once(path):
    long = [
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, Function) and node.end_lineno - node.lineno >= FUNCTION_LINES
    ]
    assert long == []
