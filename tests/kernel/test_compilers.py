"""What either compiler makes is taken by the verifier, whole, and counts right."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from bpf import build
from tests.kernel.ground_truth import PRIMES, read_whole, write_files
from tests.kernel.observed import ObservedKernel
from trainobs.core.abi import FileClass, Op
from trainobs.probes import shared

pytestmark = pytest.mark.needs_bpf


@pytest.mark.parametrize(
    ("compiler", "kfunc"),
    list(itertools.product(["clang", "zig"], [True, False])),
    ids=str,
)
def test_the_object_of_each_compiler_loads_whole_and_counts_right(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: Path, compiler: str, kfunc: bool
) -> None:
    try:
        objects = build.build(tmp_path / "objects", compiler, werror=True)
    except build.BuildError as error:
        pytest.skip(error.args[0])
    monkeypatch.setattr(shared, "object_files", lambda names: [objects[0 if kfunc else 1]])
    files = write_files(place)
    observed = ObservedKernel()
    try:
        assert set(observed.kernel.status.values()) == {"on"}
        observed.data(place)
        got = observed.during(lambda: [read_whole(path) for path in files])
        assert got.bytes(Op.READ, FileClass.DATA) == sum(PRIMES)
    finally:
        observed.stop()
