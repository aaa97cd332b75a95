"""A service as root starts it, and places that its users may enter."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.service import Service


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("needs_bpf") and os.geteuid():
        pytest.skip("needs root, to start the service and to become its users")


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory on a disk that every user may read; pytest's are closed to others."""
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def service(open_place: Path) -> Iterator[Service]:
    """A running service for the group of nobody."""
    running = Service(open_place / "probed.sock")
    yield running
    running.stop()


@pytest.fixture
def small_service(open_place: Path) -> Iterator[Service]:
    running = Service(open_place / "probed.sock", "--max-sessions", 4, "--max-sessions-per-user", 2)
    yield running
    running.stop()
