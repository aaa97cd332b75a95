"""What either compiler makes is taken by the verifier, whole, and counts right."""

from __future__ import annotations

import ctypes as C
import platform
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.ground_truth import PRIMES, read_whole, write_files
from tests.kernel.observed import ObservedKernel
from trainobs.core.abi import FileClass, Op
from trainobs.probes import shared

pytestmark = pytest.mark.needs_bpf

_KINDS = ("with the kfunc", "without", "for programs that may lose their CPU")

KINDS = (*_KINDS, *(f"{kind}, counting files" for kind in _KINDS))
"""Of `build`'s first objects. Linux 6.18 has what the third one asks for, and no need of it."""

MOST_VERIFIED = (22_000, 22_000, 22_000, 38_000, 38_000, 38_000)
"""Instructions of each that the verifier may go through: on Linux 6.18 18 to 28 thousand of what
clang makes, and more of what zig does."""

_VERIFIED_OFFSET = 216  # bpf_prog_info::verified_insns, since v5.16


@pytest.fixture(scope="module", params=["clang", "zig"])
def objects(request: pytest.FixtureRequest, compiled: Callable[..., list[Path]]) -> list[Path]:
    """What a compiler makes for this machine."""
    return compiled(request.param, platform.machine())


@pytest.mark.parametrize("kind", KINDS)
def test_the_object_of_each_compiler_loads_whole_and_counts_right(
    monkeypatch: pytest.MonkeyPatch, place: Path, objects: list[Path], kind: str
) -> None:
    number = KINDS.index(kind)
    monkeypatch.setattr(shared, "object_files", lambda names, counts_files: [objects[number]])
    files = write_files(place)
    observed = ObservedKernel()
    try:
        assert set(observed.kernel.status.values()) == {"on"}
        observed.data(place)
        got = observed.during(lambda: [read_whole(path) for path in files])
        assert got.bytes(Op.READ, FileClass.DATA) == sum(PRIMES)
        assert verified(observed) < MOST_VERIFIED[number]
    finally:
        observed.stop()


def verified(observed: ObservedKernel) -> int:
    """Instructions that the verifier went through, of all programs."""
    loader = observed.kernel._probes._loader
    count = 0
    for program in loader._programs.values():
        descriptor = loader._library.bpf_program__fd(program)
        if descriptor >= 0:
            info = C.create_string_buffer(_VERIFIED_OFFSET + 8)
            size = C.c_uint(len(info))
            assert not loader._library.bpf_obj_get_info_by_fd(descriptor, info, C.byref(size))
            count += struct.unpack_from("<I", info.raw, _VERIFIED_OFFSET)[0]
    return count
