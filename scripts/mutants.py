#!/usr/bin/env python3
"""Change the code at random places, and see whether the tests notice.

usage: python scripts/mutants.py [--own] [--count 60] [--seed 1] [--results FILE] [--page PAGE]

Copies the working tree, makes one small change in it at a time (another comparison, operator,
number or condition) in one of the rooms below, and runs the tests: those of `make test`, room's own
first; if they pass, those that only `make test-all` runs. With `--own` it runs the tests of the
room alone, which takes minutes where the rest takes hours. What is found goes to FILE, a line a
mutant, from which an interrupted run goes on. With `--page` a table of it replaces the one in PAGE.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "src/trainobs"
ROOMS = ("steps", "verdict", "access", "fae", "runlog")
BEGIN, END = "<!-- mutants: begin -->\n", "<!-- mutants: end -->\n"
TIMEOUT_S = 1800

COMPARED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
COMBINED = {"+": "-", "-": "+", "*": "+", "/": "*", "//": "*", "%": "+", "&": "|", "|": "&"}
SYMBOLS: dict[type[ast.AST], str] = {
    **{ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="},
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//"},
    **{ast.Mod: "%", ast.BitAnd: "&", ast.BitOr: "|"},
}


class Mutant(NamedTuple):
    """One change: the text between two places of a file, in bytes of UTF-8, becomes another."""

    file: str
    line: int
    begin: int
    end: int
    new: str

    def apply(self, tree: Path) -> bytes:
        """Make the change in a tree; what the file was before."""
        path = tree / self.file
        before = path.read_bytes()
        path.write_bytes(before[: self.begin] + self.new.encode() + before[self.end :])
        return before

    def words(self) -> str:
        """The change as a reader sees it."""
        old = (ROOT / self.file).read_bytes()[self.begin : self.end].decode()
        return f"`{' '.join(old.split())}` -> `{' '.join(self.new.split())}`"


def mutants_of(file: str) -> Iterator[Mutant]:
    """Every change that is tried in a file; annotations and docstrings are left alone."""
    text = (ROOT / file).read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def between(left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Mutant]:
        begin, end = place(left)[1], place(right)[0]
        at = text[begin:end].find(old.encode())
        if at >= 0:
            yield Mutant(file, left.lineno, begin + at, begin + at + len(old), new)

    for node in _expressions(ast.parse(text)):
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                symbol = SYMBOLS.get(type(operator), "")
                if symbol in COMPARED:
                    yield from between(left, right, symbol, COMPARED[symbol])
            case ast.BinOp(left=left, op=operator, right=right):
                symbol = SYMBOLS.get(type(operator), "")
                if symbol in COMBINED:
                    yield from between(left, right, symbol, COMBINED[symbol])
            case ast.BoolOp(op=operator, values=[left, right, *_]):
                words = ("and", "or") if isinstance(operator, ast.And) else ("or", "and")
                yield from between(left, right, *words)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield Mutant(file, node.lineno, *place(node), ast.unparse(operand))
            case ast.Constant(value=bool(value)):
                yield Mutant(file, node.lineno, *place(node), str(not value))
            case ast.Constant(value=int(value) | float(value)):
                yield Mutant(file, node.lineno, *place(node), str(value + 1))


def _expressions(tree: ast.AST) -> Iterator[ast.AST]:
    """Without annotations, in which a change means nothing."""
    for name, child in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for node in child if isinstance(child, list) else [child]:
            if isinstance(node, ast.AST):
                yield node
                yield from _expressions(node)


def chosen(count: int, seed: int) -> list[Mutant]:
    """Mutants drawn at random, the same for the same sources; as many of each room."""
    draw = random.Random(seed)
    drawn = []
    for index, room in enumerate(ROOMS):
        files = sorted((ROOT / SOURCE / room).rglob("*.py"))
        every = [m for path in files for m in mutants_of(str(path.relative_to(ROOT)))]
        share = count // len(ROOMS) + (index < count % len(ROOMS))
        drawn += draw.sample(every, share)
    return drawn


class Tests:
    """Runs the tests of a tree that is a copy of this one.

    Args:
        tree: the copy.
        own: whether the tests of a room are all that is run for it.
    """

    def __init__(self, tree: Path, own: bool) -> None:
        self._tree = tree
        self._own = own

    def killer(self, room: str) -> str:
        """Which tests fail, those of the room first: "test", "test-all", or "" for none."""
        own, every = self._tree / "tests" / room, self._tree / "tests"
        runs = [("test", own, "not slow")]
        if not self._own:
            runs += [("test", every, "not slow"), ("test-all", every, "slow")]
        return next((name for name, folder, which in runs if self._fail(folder, which)), "")

    def _fail(self, folder: Path, which: str) -> bool:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--reruns", "0", "-m", which]
        path = {"PYTHONPATH": str(self._tree / "src")}
        try:
            done = subprocess.run(
                [*command, "-p", "no:cacheprovider", str(folder)],
                cwd=self._tree,
                env=os.environ | path,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True
        return done.returncode not in (0, 5)  # 5: there are none


def judge(mutant: Mutant, tests: Tests, tree: Path) -> dict[str, Any]:
    """What became of a mutant."""
    room = mutant.file.removeprefix(f"{SOURCE}/").split("/")[0]
    one = {"room": room, "file": mutant.file, "line": mutant.line, "change": mutant.words()}
    before = mutant.apply(tree)
    try:
        return one | {"killed_by": tests.killer(room)}
    finally:
        (tree / mutant.file).write_bytes(before)


def table(found: list[dict[str, Any]], own: bool) -> str:
    """Markdown: mutants by room, and those that nothing noticed."""
    columns = {
        "mutants": ("test", "test-all", ""),
        "killed by `make test`": ("test",),
        "by `make test-all`": ("test", "test-all"),
        "by none": ("",),
    }
    if own:
        del columns["by `make test-all`"]
    rooms = sorted({one["room"] for one in found})
    counts = Counter((one["room"], one["killed_by"]) for one in found)
    lines = [f"| room | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for room in (*rooms, "all"):
        numbers = [
            sum(n for (where, by), n in counts.items() if room in (where, "all") and by in kinds)
            for kinds in columns.values()
        ]
        lines.append(f"| {room} | {' | '.join(map(str, numbers))} |")
    alive = [one for one in found if not one["killed_by"]]
    lines += ["", *(f"* `{one['file']}:{one['line']}`: {one['change']}" for one in alive)]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--own", action="store_true", help="only the tests of the mutant's room")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.jsonl")
    parser.add_argument("--page", type=Path, help="the page whose table is to be replaced")
    options = parser.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    known = options.results.read_text().splitlines() if options.results.exists() else []
    found: list[dict[str, Any]] = [json.loads(line) for line in known]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place, options.results.open("a") as file:
        tree = Path(place) / "tree"
        left_out = shutil.ignore_patterns(".git", ".venv*", "build", "runs", "__pycache__")
        shutil.copytree(ROOT, tree, ignore=left_out)
        for mutant in chosen(options.count, options.seed)[len(found) :]:
            one = judge(mutant, Tests(tree, options.own), tree)
            found.append(one)
            print(json.dumps(one), file=file, flush=True)
            print(f"{one['killed_by'] or 'ALIVE':8} {mutant.file}:{mutant.line} {one['change']}")
    if options.page:
        before, _, rest = options.page.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        options.page.write_text(f"{before}{BEGIN}{table(found, options.own)}{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
