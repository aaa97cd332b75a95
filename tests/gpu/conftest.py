"""The machine with GPUs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.machine import Machine, compile_library


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    """The compiled stand-in for NVML."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc")
    return compile_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(library, tmp_path) -> Machine:
    """A machine with one board."""
    return Machine(library, tmp_path)


@pytest.fixture
def machine_of(library, tmp_path) -> Callable[[int], Machine]:
    """A machine with some boards."""
    return lambda boards: Machine(library, tmp_path, boards)
