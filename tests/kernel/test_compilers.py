"""What either compiler makes is taken by the verifier, whole, and counts right."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.ground_truth import PRIMES, read_whole, write_files
from tests.kernel.observed import ObservedKernel
from trainobs.core.abi import FileClass, Op
from trainobs.probes import shared

pytestmark = pytest.mark.needs_bpf

KINDS = ("with the kfunc", "without", "for programs that may lose their CPU")
"""Of `build`'s first objects. Linux 6.18 has what the last one asks for, and no need of it."""


@pytest.fixture(scope="module", params=["clang", "zig"])
def objects(request: pytest.FixtureRequest, compiled: Callable[..., list[Path]]) -> list[Path]:
    """What a compiler makes for this machine."""
    return compiled(request.param, platform.machine())


@pytest.mark.parametrize("kind", KINDS)
def test_the_object_of_each_compiler_loads_whole_and_counts_right(
    monkeypatch: pytest.MonkeyPatch, place: Path, objects: list[Path], kind: str
) -> None:
    number = KINDS.index(kind)
    monkeypatch.setattr(shared, "object_files", lambda names: [objects[number]])
    files = write_files(place)
    observed = ObservedKernel()
    try:
        assert set(observed.kernel.status.values()) == {"on"}
        observed.data(place)
        got = observed.during(lambda: [read_whole(path) for path in files])
        assert got.bytes(Op.READ, FileClass.DATA) == sum(PRIMES)
    finally:
        observed.stop()
