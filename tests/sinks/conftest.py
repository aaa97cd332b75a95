"""Fixtures for the tests of `trainobs.sinks`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.sinks.samples import small_disk


@pytest.fixture
def disk(tmp_path) -> Iterator[Callable[[str], Path]]:
    """Mounts a tmpfs with the given options below the test's directory."""
    if os.geteuid():
        pytest.skip("mounting a small disk needs root")
    with ExitStack() as mounts:
        yield lambda options: mounts.enter_context(small_disk(tmp_path / "disk", options))
