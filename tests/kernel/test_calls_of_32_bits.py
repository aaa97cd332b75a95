"""System calls of 32 bits, whose numbers are those of other calls of 64."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.ground_truth import MIB, PAGE, write_file
from tests.kernel.observed import ObservedKernel
from trainobs.core.abi import FileClass, Op

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code of x86_64"),
]

DATA = FileClass.DATA
SEEK_32 = bytes.fromhex("53 89fb 89f1 ba02000000 b813000000 cd80 5b c3")
"""int f(int fd, int offset): lseek(fd, offset, SEEK_END) by `int 0x80`, whose number is readv's."""


def test_a_call_of_32_bits_is_not_taken_for_the_one_that_has_its_number(
    observed: ObservedKernel, place: Path
) -> None:
    path = write_file(place / "some", MIB)
    observed.data(place)
    code = mmap.mmap(-1, PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(SEEK_32)
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    seek_32 = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)(address)
    with path.open("rb", buffering=0) as file:
        if has_no_such_calls(lambda: seek_32(file.fileno(), 0)):
            pytest.skip("this kernel has no calls of 32 bits")
        got = observed.during(lambda: seek_32(file.fileno(), 0))
        assert file.tell() == MIB
    assert got.count(Op.READ, DATA) == 0


def has_no_such_calls(call: Callable[[], object]) -> bool:
    """Whether a child that makes one is killed."""
    child = os.fork()
    if not child:
        call()
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0
