"""The list of slow tests names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.slow import SLOW, all_slow, is_slow, none_slow

FOLDER = Path(__file__).parent


def names(file: Path) -> list[str]:
    """Tests of a file, without their cases."""
    where = file.relative_to(FOLDER).with_suffix("")
    tree = ast.walk(ast.parse(file.read_text()))
    return [f"{where}::{node.name}" for node in tree if isinstance(node, ast.FunctionDef)]


def test_every_pattern_finds_a_test():
    known = [name for file in FOLDER.rglob("test_*.py") for name in names(file)]
    functions = (pattern.partition(r".*\[")[0].partition(r"\[")[0] for pattern in SLOW)
    assert [f for f in functions if not any(re.match(f, name) for name in known)] == []


def test_a_pattern_is_matched_from_the_begin():
    assert is_slow("tests/fae/test_killed.py::test_anything[1-20]")
    assert not is_slow("tests/fae/test_not_killed.py::test_anything")


def test_a_module_is_slow_if_all_of_its_tests_are():
    assert all_slow(FOLDER / "fae" / "test_killed.py")
    assert all_slow(FOLDER / "benchmarks" / "test_peers.py")
    assert not all_slow(FOLDER / "integrations" / "test_faults.py")  # all but some
    assert not all_slow(FOLDER / "fae" / "test_pack.py")


def test_modules_that_are_left_out_where_slow_tests_are_wanted_have_none():
    """A test that is slow by a mark of its own would be in none of the two runs."""
    functions = [re.compile(re.split(r"\.\*\\\[|\\\[", pattern)[0]) for pattern in SLOW]
    files = [file for file in FOLDER.rglob("test_*.py") if file != Path(__file__)]
    left_out = [file for file in files if none_slow(file)]
    assert FOLDER / "steps" / "test_ring.py" in left_out
    found = [name for file in left_out for name in names(file)]
    assert [name for name in found if any(f.match(name) for f in functions)] == []
    assert [file for file in files if "mark.slow" in file.read_text()] == []
