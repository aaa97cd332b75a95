"""Limits of size; docstrings, names and types are left to ruff and mypy (`make check`)."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE_LINES = 400
FUNCTION_LINES = 75

PYTHON = [
    path
    for folder in ("src", "packages", "bpf", "native", "tests", "benchmarks", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
C = sorted(path for folder in ("bpf", "native") for path in (ROOT / folder).glob("*.[ch]"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def long_files(paths: list[Path]) -> list[str]:
    """Files that cannot be read at once."""
    lengths = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in paths}
    return [name for name, lines in lengths.items() if lines > FILE_LINES]


def long_functions(text: str) -> list[str]:
    """Functions that cannot be seen at once."""
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, Function) and node.end_lineno - node.lineno >= FUNCTION_LINES
    ]


def test_files_are_short_enough_to_read_at_once():
    assert long_files(PYTHON + C) == []


def test_functions_are_short_enough_to_see_at_once():
    found = {str(path): names for path in PYTHON if (names := long_functions(path.read_text()))}
    assert found == {}


def test_a_long_function_is_found():
    body = "    pass\n" * FUNCTION_LINES
    assert long_functions(f"def short():\n    pass\nasync def long():\n{body}") == ["long"]


OF_THEIR_OWN = {"core/log.py", "integrations/inside.py", "session/writer_main.py"}
"""One makes the logger harmless, two change where it leads."""


def test_what_a_training_says_is_logged_where_no_handler_can_end_it():
    source = ROOT / "src" / "trainobs"
    found = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if 'getLogger("trainobs")' in path.read_text()
    }
    assert found == OF_THEIR_OWN
