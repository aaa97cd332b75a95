"""Roots: many of them, too many of them, and their descriptors."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainobs.core.abi import FileClass
from trainobs.probes import backend
from trainobs.probes.backend import KEPT_ROOTS
from trainobs.probes.local_backend import LocalBackend
from trainobs.probes.mounts import mount_points

DATA = FileClass.DATA

pytestmark = pytest.mark.needs_bpf


@pytest.fixture
def kernel() -> Iterator[LocalBackend]:
    """Probes without a process to follow."""
    kernel = LocalBackend(["sched"])
    yield kernel
    kernel.stop()
    vars(kernel).clear()  # the arrays hold the maps, and pytest holds the fixture


def directories(place: Path, count: int) -> list[Path]:
    paths = [place / f"{n}" for n in range(count)]
    for path in paths:
        path.mkdir()
    return paths


def open_below(place: Path) -> int:
    """Descriptors of this process that are open on something below a directory."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{fd}").startswith(f"{place}/")
        except OSError:  # the listing's own descriptor
            continue
    return found


def test_thousands_of_roots_have_room_and_the_mounts_are_read_once(
    kernel: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(backend, "mount_points", lambda: calls.append(1) or mount_points())
    kernel.add_roots(directories(tmp_path, 3000), DATA)
    assert kernel.losses()["classes"] == 0
    assert len(calls) == 1


def test_a_root_that_the_kernel_has_no_room_for_is_told(
    kernel: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = iter(range(2))
    monkeypatch.setattr(kernel, "losses", lambda: {"classes": next(lost)})
    with pytest.raises(OSError, match=f"no room for more roots: '{tmp_path}'"):
        kernel.add_root(tmp_path, DATA)


def test_a_root_that_cannot_be_opened_stops_no_other(kernel: LocalBackend, tmp_path: Path) -> None:
    first, second = directories(tmp_path, 2)
    with pytest.raises(FileNotFoundError, match="missing"):
        kernel.add_roots([first, tmp_path / "missing", second], DATA)
    assert open_below(tmp_path) == 2


@pytest.mark.parametrize("release", [LocalBackend.stop, LocalBackend.abandon])
def test_roots_stay_open_until_the_end(kernel: LocalBackend, tmp_path: Path, release) -> None:
    paths = directories(tmp_path, KEPT_ROOTS + 10)
    kernel.add_roots(paths[:3], DATA)
    assert open_below(tmp_path) == 3
    kernel.add_roots(paths[3:], DATA)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert open_below(tmp_path) == min(KEPT_ROOTS, soft // 8)
    release(kernel)
    assert open_below(tmp_path) == 0


def test_few_descriptors_are_left_to_the_training(
    kernel: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (80, 80))
    kernel.add_roots(directories(tmp_path, 30), DATA)
    assert open_below(tmp_path) == 10
