"""A real file system on a disk, and this process observed by real probes."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests import kernel_state
from tests.kernel.counted import observing
from tests.kernel.ground_truth import MAGICS, file_system, write_files
from tests.kernel.observed import ObservedKernel
from tests.kernel.processes import Outsider
from trainobs.probes import shared
from trainobs.probes.kernel_names import KernelNames
from trainobs.probes.service_backend import ServiceBackend

SHARE_A_SET = (
    *("test_file_classes", "test_inferred_classes", "test_interpreter_lock", "test_memory"),
    *("test_names_and_numbers", "test_scheduler"),
)
"""Modules whose tests share one set of programs, through a service; each test of the others loads
one, as a run does that may."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs_program"):
        if marker.args[0] in kernel_state.programs_off_here():
            pytest.skip(f"Linux {platform.release()} cannot run {marker.args[0]}")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """An empty directory on a disk, with blocks and write-back: on ext4, or `FILE_SYSTEM`."""
    kind = os.environ.get("FILE_SYSTEM", "ext4")
    if file_system(tmp_path) == MAGICS[kind]:
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        if file_system(directory) != MAGICS[kind]:
            pytest.fail(f"neither {tmp_path} nor /var/tmp is on {kind}: set TMPDIR", pytrace=False)
        yield directory
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def counting() -> Iterator[ObservedKernel]:
    """This process, with each file and each peer counted."""
    kernel = observing()
    yield kernel
    kernel.stop()


@pytest.fixture(scope="session")
def outsider() -> Iterator[Outsider]:
    """A process that is no descendant of this one."""
    process = Outsider()
    yield process
    process.stop()


@pytest.fixture
def observed(request: pytest.FixtureRequest, outsider: Outsider) -> Iterator[ObservedKernel]:
    """This process, followed; the outsider was born before."""
    shares = request.path.stem in SHARE_A_SET
    service = request.getfixturevalue("service_of_tests") if shares else None
    kernel = ObservedKernel(kernel=ServiceBackend(service) if service else None)
    yield kernel
    kernel.stop()


@pytest.fixture
def files(place: Path, observed: ObservedKernel) -> list[Path]:
    """The 23 files of a registered data set, not in memory."""
    observed.data(place)
    return write_files(place)


class Lacking(KernelNames):
    """The running kernel, but for some names."""

    lacking: ClassVar[frozenset[str]] = frozenset()

    def __contains__(self, name: object) -> bool:
        return name not in self.lacking and super().__contains__(name)

    def has_tracepoint(self, name: str) -> bool:
        return name not in self.lacking and super().has_tracepoint(name)


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Take names from the running kernel."""

    def take(*names: str) -> None:
        monkeypatch.setattr(Lacking, "lacking", frozenset(names))
        monkeypatch.setattr(shared, "KernelNames", Lacking)

    return take
