"""A plain loop that runs for the tests of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.attach.target import LOOPS, Target


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Target]]:
    """Start loops of `loops.py` or `things.py`; what is left of them is killed."""
    with ExitStack() as targets:

        def one(kind: str, seconds: float, ranks: int = 1, module: str = LOOPS) -> Target:
            target = Target(kind, tmp_path, seconds, ranks, module)
            targets.callback(target.end)
            return target

        yield one


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A plain loop, until the tests of the module are done."""
    target = Target("plain", tmp_path_factory.mktemp("plain"), 600)
    target.pid()  # from now on its name is its own, for the check of what tests leave behind
    yield target
    target.end()
